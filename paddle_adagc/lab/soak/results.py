# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Results of the trials: a line each, and the table of the documentation."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddle_adagc.files import atomic_write
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.soak.cell_table import cells_text
from paddle_adagc.lab.soak.runs import KINDS, OUTCOMES, Trial

_MARKS = {"soak": "<!-- soak -->", "cells": "<!-- soak cells -->"}
_END = "<!-- end -->"


def read_trials(path: str | os.PathLike[str]) -> list[Trial]:
    """Read a results file; an absent one has no trials.

    Raises:
        ValueError: A line is not a trial.
    """
    if not Path(path).exists():
        return []
    trials = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        try:
            trials.append(Trial(**json.loads(line)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return trials


def write_trials(
    path: str | os.PathLike[str], kind: str, trials: Sequence[Trial]
) -> None:
    """Replace the trials of one kind."""
    kept = [trial for trial in read_trials(path) if trial.kind != kind]
    lines = [json.dumps(_as_dict(t)) for t in [*kept, *trials]]
    atomic_write(path, "".join(f"{line}\n" for line in lines))


def _as_dict(trial: Trial) -> dict[str, Any]:
    """Return a trial without its empty fields."""
    values = dataclasses.asdict(trial)
    return {
        key: value for key, value in values.items() if value not in ("", {})
    }


def summary(trials: Sequence[Trial]) -> str:
    """Return a Markdown table: what was done, how often, how it ended."""
    rows = []
    for kind, title in KINDS.items():
        counts: collections.Counter[str] = collections.Counter()
        for trial in trials:
            counts[trial.outcome] += trial.count * (trial.kind == kind)
        if counts.total():
            numbers = [f"{counts[outcome]:,}" for outcome in OUTCOMES]
            rows.append([title, f"{counts.total():,}", *numbers])
    return markdown_table(["Trial", "Number", *OUTCOMES], rows)


def write_results(path: Path, kind: str, trials: Sequence[Trial]) -> None:
    """Replace the trials of one kind, and the table of the documentation.

    Args:
        path: Results file; the documentation's is ``results/soak.jsonl``.
        kind: One of :data:`KINDS`.
        trials: Of that kind.
    """
    root = Path(__file__).parents[3]
    write_trials(path, kind, trials)
    if Path(path) == root / "results/soak.jsonl":
        target = root / "docs/soak.md"
        text = page(target.read_text("utf-8"), read_trials(path))
        atomic_write(target, text)


def page(text: str, trials: Sequence[Trial]) -> str:
    """Replace the tables of the documentation's page."""
    tables = {"soak": summary(trials), "cells": cells_text(trials)}
    for name, mark in _MARKS.items():
        before, rest = text.split(mark, 1)
        after = rest.split(_END, 1)[1]
        text = f"{before}{mark}\n{tables[name]}\n{_END}{after}"
    return text
