# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kill runs, cut their power, damage their files; put one bad step into them.

    python tools/soak.py
    python tools/soak.py damage power --count 20

Every trial compares a run with an uninterrupted one. The counts by default are
300 kills, 50 power losses, all damaged files, 20 disks, and 1,875 cells: 24
faults and a control in 5 phases, under 5 clips, with 3 seeds. Power losses and
disks need the right to mount (root on Linux). The results go to
results/soak.jsonl, their tables to docs/soak.md.
"""

from __future__ import annotations

import argparse
import collections
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from paddle_adagc.checks import check_installed
from paddle_adagc.lab.cli.command import (
    add_trial_options,
    exit_status,
    make_parser,
)

if TYPE_CHECKING:
    from paddle_adagc.lab.soak.runs import Trial

_COUNTS = {
    "kills": 300,
    "power": 50,
    "damage": 1000,
    "storage": 20,
    "cells": 1875,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0: no run was lost; 1: one was; 2: bad settings.
    """
    parser = make_parser("soak", __doc__)
    add = parser.add_argument
    known = ", ".join(_COUNTS)
    add("kinds", nargs="*", metavar="KIND", help=f"{known} (default: all)")
    add("--count", type=int, metavar="N", help="trials of each kind")
    add_trial_options(parser)
    options = parser.parse_args(arguments)
    for kind in options.kinds:
        if kind not in _COUNTS:
            parser.error(f"{kind!r} is not one of {', '.join(_COUNTS)}")
    if options.count is not None and options.count < 1:
        parser.error(f"--count {options.count}: not positive")
    return exit_status(parser, _soak, options)


def _soak(options: argparse.Namespace) -> int:
    check_installed("paddlenlp", "nlp")
    from paddlenlp.utils.log import logger as paddlenlp_logger

    from paddle_adagc.lab.soak.results import write_results
    from paddle_adagc.lab.soak.runs import LOST

    logging.getLogger().addHandler(logging.NullHandler())
    paddlenlp_logger.set_level("WARNING")
    lost = 0
    for kind in options.kinds or _COUNTS:
        trials = _trials(kind, options.count or _COUNTS[kind], options.seed)
        write_results(options.output, kind, trials)
        lost += sum(trial.outcome in LOST for trial in trials)
    return int(lost > 0)


def _trials(kind: str, count: int, seed: int) -> list[Trial]:
    from paddle_adagc.lab.cli import pretrain
    from paddle_adagc.lab.soak.cells import cell_trials
    from paddle_adagc.lab.soak.damage import damage_trials
    from paddle_adagc.lab.soak.kills import kill_trials
    from paddle_adagc.lab.soak.power import power_trials
    from paddle_adagc.lab.soak.runs import LOST
    from paddle_adagc.lab.soak.storage import storage_trials

    trials_of: dict[str, Callable[..., Iterator[Trial]]] = {
        "kills": kill_trials,
        "power": power_trials,
        "damage": damage_trials,
        "storage": storage_trials,
        "cells": cell_trials,
    }
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for trial in trials_of[kind](Path(folder), pretrain.main, count, seed):
            trials.append(trial)
            if trial.outcome in LOST:
                print(f"{trial.outcome}: {trial.case}: {trial.message}")
    counts = collections.Counter(trial.outcome for trial in trials)
    print(f"{kind}: {', '.join(f'{n} {name}' for name, n in counts.items())}")
    return trials
