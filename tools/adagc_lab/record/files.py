# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files of a run: written step by step, read as arrays.

A run directory holds three files:

- ``run.json``: how the run was made (config, versions) and how it ended;
- ``metrics.jsonl``: one JSON object per optimizer step;
- ``tensors.f32``: per step a ``[len(QUANTITIES), num_tensors]`` block of
  little-endian float32, with the tensor names in ``tensors.json``.

A resumed run first cuts the files back to its step. The library's record
beside them (folder ``record``) does not replace them: it rounds a loss to six
digits, while a resumed run must have the same losses bit by bit; its thread
may write a step after the checkpoint that counts on it; and numbers that a
step gets later, such as a validation loss, do not fit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from adagc_lab.storage import FolderLock, atomic_write_json
from paddle_adagc.files import make_directory

METRICS, TENSORS, NAMES = "metrics.jsonl", "tensors.f32", "tensors.json"
RECORD = "record"
"""Folder of the library's record in a run's: each tensor, and the alarms."""

ENDED = ("finished", "diverged")
"""States of a run that is not resumed."""

QUANTITIES = ("norm", "clipped_norm", "gamma", "moment1", "moment2")


class RunWriter:
    """Append the steps of a run to the files of ``directory``.

    Steps from ``start_step`` on, of an earlier process, are cut off.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        tensor_names: list[str],
        start_step: int = 0,
    ) -> None:
        self.directory = folder = make_directory(directory)
        self._num_bytes = 4 * len(QUANTITIES) * len(tensor_names)  # of a step
        lines = []
        if start_step:
            if json.loads((folder / NAMES).read_bytes()) != tensor_names:
                raise ValueError(
                    f"{folder / NAMES} lists other tensors than this run logs: "
                    "resume with the config that the run was started with"
                )
            lines = (folder / METRICS).read_bytes().splitlines(True)
            size = (folder / TENSORS).stat().st_size
            if len(lines) < start_step or size < start_step * self._num_bytes:
                raise ValueError(
                    f"{folder} holds {len(lines)} steps, fewer than the "
                    f"{start_step} to resume from"
                )
        kept = sum(map(len, lines[:start_step]))
        self._metrics = _opened(folder / METRICS, kept)
        self._tensors = _opened(folder / TENSORS, start_step * self._num_bytes)
        # Last: until then a process that is killed has changed nothing.
        atomic_write_json(folder / NAMES, tensor_names, indent=None)

    def append(
        self, metrics: dict[str, Any], tensors: np.ndarray | None = None
    ) -> None:
        """Write one step: JSON values, with ``step`` and ``loss`` among them.

        ``tensors``: ``[len(QUANTITIES), num_tensors]``, NaN where unknown;
        None if the run logs none.
        """
        if tensors is not None:
            block = np.asarray(tensors, "<f4").tobytes()
            assert len(block) == self._num_bytes
            self._tensors.write(block)
        self._metrics.write(json.dumps(metrics).encode() + b"\n")

    def flush(self) -> None:
        """Hand all data to the operating system."""
        self._tensors.flush()
        self._metrics.flush()

    def sync(self) -> None:
        """Put all steps on the disk."""
        self.flush()
        for file in (self._tensors, self._metrics):
            os.fsync(file.fileno())

    def close(self) -> None:
        """Flush and close the files."""
        self._tensors.close()
        self._metrics.close()


def _opened(path: Path, num_bytes: int) -> IO[bytes]:
    """Open a file to append to; cut off what is longer."""
    file = path.open("ab")
    file.truncate(num_bytes)
    return file


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


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a file's complete lines, one per step from 0 on."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().splitlines(True)):
        if not line.endswith(b"\n"):
            break
        try:
            rows.append(json.loads(line))
            if rows[-1]["step"] != number:
                raise ValueError(f"step {rows[-1]['step']} is out of place")
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}, line {number + 1}: damaged ({error}): put the file "
                "back, or give the run's command again with --overwrite"
            ) from error
    return rows


def columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return every numeric key as float64 ``[num_steps]``."""
    numbers = [
        {k: float(x) for k, x in row.items() if isinstance(x, (int, float))}
        for row in rows
    ]
    return {
        key: np.array([row.get(key, np.nan) for row in numbers], np.float64)
        for key in sorted({"loss"}.union(*numbers))
    }


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """A finished or running run, as arrays over its ``num_steps`` steps."""

    name: str  # directory name
    run: dict[str, Any]
    """Content of ``run.json``: ``config``, ``seed``, ``versions``, ``status``
    (``"running"``, ``"stopped"``, ``"finished"`` or ``"diverged"``),
    ``wall_seconds``."""

    metrics: dict[str, np.ndarray]
    """Every numeric key of ``metrics.jsonl`` as ``[num_steps]`` float64, NaN
    where a step has no value."""

    faults: dict[int, list[dict[str, Any]]]
    """Injected faults by step: each ``{"kind": str, "tensors": [str, ...]}``
    (``tensors`` is empty for faults of the batch)."""

    tensor_names: list[str]
    tensors: dict[str, np.ndarray]
    """Every name of :data:`QUANTITIES` as ``[num_steps, num_tensors]``
    float32, NaN if not logged: norms before and after the clip; gamma and
    norms of the moments after the step."""

    @property
    def loss(self) -> np.ndarray:
        """Training loss, ``[num_steps]`` float64."""
        return self.metrics["loss"]

    @property
    def num_steps(self) -> int:
        """Number of logged optimizer steps."""
        return len(self.loss)

    @property
    def clean_steps(self) -> np.ndarray:
        """Steps whose batch no fault has corrupted, int64, ascending.

        The loss of another step comes from the corruption, whatever the state
        of the model. A fault of a gradient shows one step later.
        """
        corrupted = [
            step
            for step, faults in self.faults.items()
            if not all(f["kind"].startswith("gradient") for f in faults)
        ]
        return np.setdiff1d(np.arange(self.num_steps), corrupted)

    @property
    def h(self) -> np.ndarray:
        """Scale of each tensor's gradient, ``[num_steps, num_tensors]``.

        1 where the norm is zero; 0 where a non-finite gradient was zeroed.
        """
        norm, clipped = self.tensors["norm"], self.tensors["clipped_norm"]
        with np.errstate(all="ignore"):
            h = np.where(norm == 0, 1.0, clipped / norm)
        return np.where(np.isfinite(norm), h, np.where(clipped == 0, 0.0, h))

    def first_steps(self, count: int) -> RunRecord:
        """Return the record of at most the first ``count`` steps."""
        return dataclasses.replace(
            self,
            metrics={k: x[:count] for k, x in self.metrics.items()},
            faults={s: x for s, x in self.faults.items() if s < count},
            tensors={k: x[:count] for k, x in self.tensors.items()},
        )

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> RunRecord:
        """Read a run directory; a half-written last step is left out."""
        path = Path(directory)
        run = read_run_json(path)
        rows = read_rows(path / METRICS)
        names = json.loads((path / NAMES).read_bytes())
        raw = np.fromfile(path / TENSORS, "<f4")
        if block_size := len(QUANTITIES) * len(names):
            rows = rows[: raw.size // block_size]
        blocks = raw[: len(rows) * block_size].reshape(
            len(rows), len(QUANTITIES), len(names)
        )
        return cls(
            name=path.name,
            run=run,
            metrics=columns(rows),
            faults={
                row["step"]: row["faults"] for row in rows if row.get("faults")
            },
            tensor_names=names,
            tensors={
                quantity: blocks[:, i] for i, quantity in enumerate(QUANTITIES)
            },
        )
