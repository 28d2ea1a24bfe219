# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read corrupt input of every kind: 100,000 files, or as many as you give.

    python tools/fuzz.py
    python tools/fuzz.py "clip state" tar --count 2000

Sound files are changed in random places and read. A reader must refuse them by
an error that names the file, or read something: no other exception, no more
than 5 seconds, and no changed file that has a checksum. The results go to
results/soak.jsonl, their table to docs/soak.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from paddle_adagc.checks import check_choice, check_installed
from paddle_adagc.lab.cli.command import (
    add_trial_options,
    exit_status,
    make_parser,
)

_COUNT = 100_000


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0: no reader did anything wrong; 1: one did; 2: bad settings.
    """
    parser = make_parser("fuzz", __doc__)
    add = parser.add_argument
    add(
        "kinds",
        nargs="*",
        metavar="KIND",
        help="kind of input (default: all; a wrong name lists them)",
    )
    add(
        "--count",
        type=int,
        default=_COUNT,
        metavar="N",
        help="files, over all kinds (default: %(default)s)",
    )
    add_trial_options(parser)
    options = parser.parse_args(arguments)
    if options.count < 1:
        parser.error(f"--count {options.count}: not positive")
    return exit_status(parser, _fuzz, options)


def _fuzz(options: argparse.Namespace) -> int:
    check_installed("paddlenlp", "nlp")
    check_installed("webdataset", "image-text")
    from paddle_adagc.lab.soak.readers import READERS
    from paddle_adagc.lab.soak.results import write_results
    from paddle_adagc.lab.soak.runs import Trial

    for kind in options.kinds:
        check_choice("KIND", kind, READERS)
    kinds = options.kinds or [*READERS]
    trials = []
    for number, kind in enumerate(kinds):
        share = (options.count + number) // len(kinds)
        faults = _faults(kind, share, options.seed)
        print(f"{kind}: {share:,} files, {len(faults)} faults", flush=True)
        for fault in faults[:3]:
            print(f"  {fault}")
        sound = share - len(faults)
        trials.append(Trial("inputs", kind, "refused or read", count=sound))
        trials += [Trial("inputs", kind, "traceback", f) for f in faults]
    write_results(options.output, "inputs", trials)
    return int(any(trial.outcome == "traceback" for trial in trials))


def _faults(kind: str, count: int, seed: int) -> list[str]:
    from paddle_adagc.lab.soak.inputs import (
        Input,
        corrupt,
        random_edits,
    )
    from paddle_adagc.lab.soak.readers import READERS

    rng = np.random.default_rng([seed, [*READERS].index(kind)])
    with tempfile.TemporaryDirectory() as folder:
        subject = Input(READERS[kind], Path(folder))
        changed = (
            corrupt(subject.sound, random_edits(rng)) for _ in range(count)
        )
        return [fault for c in changed if (fault := subject.fault_of(c))]
