# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trials, how they can end, and the table of the documentation.

With ``SOAK_RECORD=1`` a session of pytest replaces the committed trials of the
kinds that it ran, and the table.
"""

import collections
import json
import os
from pathlib import Path
from typing import NamedTuple

from paddle_adagc.files import atomic_write
from paddle_adagc.lab.markdown import markdown_table

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results/soak.jsonl", ROOT / "docs/soak.md"
REPEAT = int(os.environ.get("SOAK_REPEAT", "1"))
"""How often the long tests repeat their trials."""

KINDS = {
    "kills": "SIGKILL, SIGTERM or SIGINT at a random moment",
    "power": "Power loss at a random moment",
    "damage": "One file of a run or of its data damaged",
    "storage": "Disk full, disk read-only, folder removed or moved",
    "inputs": "Corrupt input, other bytes",
    "structures": "Corrupt input, other sizes, counts, names or nesting",
}
"""What the trials do."""

LOST = ("silent", "traceback")
"""Outcomes that must not occur."""

OUTCOMES = ("resumed", "fell back", "refused", "refused or read", *LOST)
"""How a trial can end; docs/soak.md says what that means."""


class Trial(NamedTuple):
    """What was done to a run, and how its command then ended."""

    kind: str
    case: str
    outcome: str
    message: str = ""
    count: int = 1  # number of trials that this one stands for


def read_trials(path):
    """Read a results file, without the cells of ``tools/soak_cells.py``."""
    lines = map(json.loads, path.read_text("utf-8").splitlines())
    return [Trial(**line) for line in lines if line["kind"] in KINDS]


def write_trials(path, trials):
    """Replace the lines of the trials' kinds."""
    kinds = {trial.kind for trial in trials}
    lines = path.read_text("utf-8").splitlines()
    kept = [line for line in lines if json.loads(line)["kind"] not in kinds]
    for trial in trials:
        values = trial._asdict().items()
        kept.append(json.dumps({k: v for k, v in values if v != ""}))
    atomic_write(path, "".join(f"{line}\n" for line in kept))


def page(text, trials):
    """Replace the table of trials in the documentation's page."""
    counts = collections.defaultdict(collections.Counter)
    for trial in trials:
        for column in ("Number", trial.outcome):
            counts[trial.kind][column] += trial.count
    rows = [
        [KINDS[kind], *(f"{found[name]:,}" for name in ("Number", *OUTCOMES))]
        for kind in KINDS
        if (found := counts[kind])
    ]
    table = markdown_table(["Trial", "Number", *OUTCOMES], rows)
    before, rest = text.split("<!-- soak -->", 1)
    after = rest.split("<!-- end -->", 1)[1]
    return f"{before}<!-- soak -->\n{table}\n<!-- end -->{after}"
