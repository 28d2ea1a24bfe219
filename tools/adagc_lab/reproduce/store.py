# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Results: a table with a row per run, and the losses of its steps beside it.

A target has two files: ``TARGET.csv``, and ``TARGET.npz`` with the losses of
all rows one after the other, in thousandths of a nat as int32 (-1: not finite).
A row is named by its columns :data:`ID`. Rows recorded before losses were kept
have ``num_losses`` 0 and the measures of then in columns ``old_...``; rows
recorded before processors were kept have an empty ``processor``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from adagc_lab.record.files import RunRecord
from adagc_lab.report.measures import describe_run
from adagc_lab.reproduce.grid import ExperimentConfig, PlannedRun
from paddle_adagc.files import atomic_write

ID = [
    *("target", "experiment", "method", "seed", "steps"),
    *("processor", "clean_twin"),
]
"""What names a run. ``clean_twin`` is 1 for the run without the faults."""

_TEXTS = [
    *("target", "experiment", "method", "processor", "status", "faults"),
    *("left_out", "digest", "commit", "data"),
]
_INTEGERS = ["seed", "steps", "clean_twin", "skip_steps", "num_losses"]
_CHANGES = ["digest", "skip_steps"]


def make_row(
    target: str, experiment: ExperimentConfig, run: PlannedRun
) -> dict[str, Any]:
    """Return an ended run's row; ``steps`` is the length that was planned."""
    record = RunRecord.load(run.directory)
    skip_steps = min(experiment.skip_steps, run.config.train.max_steps // 10)
    return {
        "target": target,
        "experiment": experiment.name,
        "method": run.method,
        "seed": run.seed,
        "clean_twin": int(run.is_clean_twin),
        "digest": run.directory.name,
        **describe_run(record, skip_steps),
        "steps": run.config.train.max_steps,
    }


def append(
    folder: str | os.PathLike[str], target: str, rows: Sequence[dict[str, Any]]
) -> None:
    """Add rows to a target's files.

    A run that is there is kept as it is. A row of the same :data:`ID` whose
    digest or ``skip_steps`` differ, because the grid has changed, is replaced.
    """
    texts = [{name: _cell(row[name]) for name in row} for row in rows]
    _add(Path(folder) / f"{target}.csv", texts, replaces=True)


def merge(
    folder: str | os.PathLike[str], other: str | os.PathLike[str]
) -> list[str]:
    """Add what another folder has and this one has not; return its targets."""
    paths = _targets(other)
    for path in paths:
        _add(Path(folder) / path.name, _read(path))
    return [path.stem for path in paths]


def _add(
    path: Path, rows: Sequence[dict[str, Any]], replaces: bool = False
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    known: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in [*(_read(path) if path.exists() else []), *rows]:
        present = known.get(key := tuple(row[name] for name in ID))
        if present is None or (
            replaces and any(present[x] != row[x] for x in _CHANGES)
        ):
            known[key] = row
    table = pd.DataFrame([*known.values()])
    codes = np.concatenate([np.zeros(0, np.int32), *table.pop("loss")])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, loss=codes)
    atomic_write(path.with_suffix(".npz"), buffer.getvalue())
    atomic_write(path, table.to_csv(index=False, lineterminator="\n"))


def _cell(value: Any) -> Any:
    """Return a number as its file has it: as text, losses as codes."""
    if value is None:
        return ""
    if isinstance(value, np.ndarray):
        is_known = np.isfinite(value)
        nat = np.where(is_known, value, 0)
        return np.where(is_known, np.rint(1000 * nat), -1).astype(np.int32)
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _read(path: Path) -> list[dict[str, Any]]:
    """Read a target's rows as text, each with its codes."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    with np.load(path.with_suffix(".npz")) as archive:
        codes = archive["loss"]
    lengths = table["num_losses"].astype(int).to_numpy()
    if lengths.sum() != len(codes):
        raise ValueError(
            f"{path.with_suffix('.npz')} has {len(codes)} losses, "
            f"{path.name} says {lengths.sum()}: restore both from git"
        )
    table["loss"] = np.split(codes, np.cumsum(lengths))[: len(lengths)]
    rows: list[dict[str, Any]] = table.to_dict("records")
    return rows


def load(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Read all targets of a folder.

    Returns:
        A row per run: integers, floats (NaN where not known) and texts; and
        ``loss``, float64 ``[num_losses]`` in nat, NaN where it was not finite.
    """
    table = pd.DataFrame([r for path in _targets(folder) for r in _read(path)])
    for name in table.columns.difference([*_TEXTS, "loss"]):
        table[name] = pd.to_numeric(table[name], errors="coerce")
    table["loss"] = [
        np.where(codes < 0, np.nan, codes / 1000) for codes in table["loss"]
    ]
    return table.astype(dict.fromkeys(_INTEGERS, int))


def _targets(folder: str | os.PathLike[str]) -> list[Path]:
    """Return each target's table."""
    paths = [
        path
        for path in sorted(Path(folder).glob("*.csv"))
        if path.with_suffix(".npz").exists()
    ]
    if not paths:
        raise FileNotFoundError(f"{folder} holds no results of any target")
    return paths
