# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: its facts, its lock, and its steps as arrays.

``run.json`` says how the run was made (config, versions) and how it ended.
``record`` is the library's record, to which the laboratory adds numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from adagc_lab.storage import FolderLock, atomic_write_json
from paddle_adagc.files import make_directory
from paddle_adagc.watch import RecordedRun, read_record
from paddle_adagc.watch.store import FILE

RECORD = "record"
"""Folder of the library's record in a run's."""

ENDED = ("finished", "diverged")
"""States of a run that is not resumed."""

CLIP_H, MOMENTS = "clip_h", ("moment1", "moment2")
"""Lists that a step may have: of every tensor the factor of the clip that acts
(the record's own is AdaGC's), and the norms of Adam's moments."""


_LAST_STEP = """
SELECT MAX(start - 1, IFNULL(
    (SELECT MAX(step) FROM steps WHERE session = number), 0))
FROM sessions ORDER BY number DESC LIMIT 1
"""


def num_steps(directory: str | os.PathLike[str]) -> int:
    """Return the number of steps that a run has recorded.

    It reads that alone of a record that may be large, and still written.
    """
    path = (Path(directory) / RECORD / FILE).absolute()
    try:
        source = f"{path.as_uri()}?mode=rw"
        with contextlib.closing(sqlite3.connect(source, uri=True)) as file:
            found = file.execute(_LAST_STEP).fetchone()
    except sqlite3.DatabaseError:  # none yet, or no record
        return 0
    return int(found[0]) if found else 0


def read_run_json(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Read ``run.json``; empty if there is no such file."""
    path = Path(directory) / "run.json"
    if not path.exists():
        return {}
    try:
        run = json.loads(path.read_bytes())
        if not isinstance(run, dict):
            raise ValueError(f"a {type(run).__name__}, not an object")
    except (RecursionError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): remove the run, or start it anew "
            "with --overwrite"
        ) from error
    return run


def update_run_json(directory: str | os.PathLike[str], **facts: Any) -> None:
    """Replace ``run.json`` atomically by its old content plus ``facts``."""
    run = {**read_run_json(directory), **facts}
    atomic_write_json(Path(directory) / "run.json", run, indent=1)


@contextlib.contextmanager
def lock_run(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Lock a run directory against other processes that would write to it.

    A new directory is removed again if it stays empty.
    """
    is_new = not Path(directory).exists()
    make_directory(directory)
    try:
        lock = FolderLock(directory)
    except BlockingIOError:
        raise FileExistsError(
            f"another process is writing to {directory}: wait for it, stop "
            "it, or choose another train.output_dir"
        ) from None
    try:
        yield
    finally:
        lock.release()
        if is_new:
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(directory)


def mark_stopped(directory: str | os.PathLike[str]) -> None:
    """Take ``"running"`` out of ``run.json``, unless a process does run it."""
    with contextlib.suppress(OSError, ValueError), lock_run(directory):
        if read_run_json(directory).get("status") == "running":
            update_run_json(directory, status="stopped")


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """A finished or running run, as arrays over its ``num_steps`` steps."""

    name: str  # directory name
    run: dict[str, Any]
    """Content of ``run.json``: ``config``, ``seed``, ``versions``, ``status``
    (``"running"``, ``"stopped"``, ``"finished"`` or ``"diverged"``),
    ``wall_seconds``, ``tensors`` (names)."""

    metrics: dict[str, np.ndarray]
    """Every number that steps have, as ``[num_steps]`` float64, NaN where a
    step has none."""

    faults: dict[int, list[dict[str, Any]]]
    """Injected faults by step: each ``{"kind": str, "tensors": [str, ...]}``
    (``tensors`` is empty for faults of the batch)."""

    tensor_names: list[str]
    tensors: dict[str, np.ndarray]
    """``norm`` and ``clipped_norm``, before and after the clip; ``h``, the
    clip's factor; AdaGC's ``gamma``; ``moment1`` and ``moment2``, norms after
    the step: each ``[num_steps, num_tensors]`` float32, NaN if unknown."""

    @property
    def loss(self) -> np.ndarray:
        """Training loss, ``[num_steps]`` float64."""
        return self.metrics["loss"]

    @property
    def num_steps(self) -> int:
        """Number of recorded optimizer steps."""
        return len(self.loss)

    @property
    def h(self) -> np.ndarray:
        """Factor of each tensor's gradient, ``[num_steps, num_tensors]``.

        1 where the norm is zero; 0 where a non-finite gradient was zeroed.
        """
        return self.tensors["h"]

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> RunRecord:
        """Read a run directory; steps count from 0 here."""
        path = Path(directory)
        run = read_run_json(path)
        found = read_record(path / RECORD)
        if found.step.tolist() != [*range(1, len(found.step) + 1)]:
            raise ValueError(
                f"{path / RECORD} lacks steps: start the run anew with "
                "--overwrite"
            )
        names = run.get("tensors", [])
        tensors = _tensors(found, names)
        metrics = {**found.columns, "loss": found.column("loss")}
        if names and "clipped_fraction" not in metrics:
            seen = np.isfinite(tensors["norm"]) & (tensors["norm"] > 0)
            clipped = np.sum(seen & (tensors["h"] < 1), 1)
            metrics["clipped_fraction"] = clipped / np.maximum(seen.sum(1), 1)
        rows = enumerate(found.rows)
        return cls(
            name=path.name,
            run=run,
            metrics=metrics,
            faults={i: row["faults"] for i, row in rows if row.get("faults")},
            tensor_names=names,
            tensors=tensors,
        )


def _tensors(found: RecordedRun, names: list[str]) -> dict[str, np.ndarray]:
    """Return what is known of tensors, see :attr:`RunRecord.tensors`."""
    shape = len(found.step), len(names)
    tables = {
        name: np.full(shape, np.nan, np.float32)
        for name in ("norm", "gamma", CLIP_H, *MOMENTS)
    }
    places = {key: i for i, key in enumerate(found.keys)}
    if names and len(found.tensor_steps):
        columns = [places[name] for name in names]
        for name in ("norm", "gamma"):
            tables[name][found.tensor_steps - 1] = found.tensors(name)[
                :, columns
            ]
    for i, row in enumerate(found.rows if names else ()):
        for name in (CLIP_H, *MOMENTS):
            if name in row:
                tables[name][i] = np.array(row[name], np.float32)
    h = tables.pop(CLIP_H)
    with np.errstate(invalid="ignore"):  # 0 times Inf
        return {**tables, "h": h, "clipped_norm": h * tables["norm"]}
