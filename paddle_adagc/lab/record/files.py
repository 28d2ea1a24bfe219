# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files of a run: written step by step, read as arrays.

A run directory holds three files:

- ``run.json``: how the run was made (config, versions) and how it ended;
- ``metrics.jsonl``: one JSON object per optimizer step;
- ``tensors.f32``: per step a ``[len(QUANTITIES), num_tensors]`` block of
  little-endian float32, with the tensor names in ``tensors.json``.

Steps are only appended. A resumed run first cuts the files back to its step
(:class:`RunWriter`), so that it leaves the same files as an uninterrupted run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.files import atomic_write_json, make_directory
from paddle_adagc.lab.checksums import Description, describe, find_fault
from paddle_adagc.lab.record.appending import AppendedFile
from paddle_adagc.lab.record.rows import FIX, columns, read_names, read_rows

METRICS, TENSORS, NAMES = "metrics.jsonl", "tensors.f32", "tensors.json"
ENDED = ("finished", "diverged")
"""States of a run that is not resumed."""

QUANTITIES = ("norm", "clipped_norm", "gamma", "moment1", "moment2")


class RunWriter:
    """Append the steps of a run to the files of ``directory``.

    A resumed run may begin or stop to log tensors: the file of a run that has
    logged some holds all steps, NaN where none were logged. Steps from
    ``start_step`` on are cut off.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        tensor_names: list[str],
        start_step: int = 0,
    ) -> None:
        self.directory = Path(directory)
        make_directory(self.directory)
        known = self._known_names() if start_step else []
        self.tensor_names = list(tensor_names) or known
        if known not in ([], self.tensor_names):
            raise ValueError(
                f"{self.directory / NAMES} lists other tensors than this run "
                "logs: resume with the config that the run was started with"
            )
        begins = bool(start_step and self.tensor_names and not known)
        num_blocks = 0 if begins else start_step
        metrics_bytes, tensors_bytes = self._sizes(start_step, num_blocks)
        self._metrics = AppendedFile(self.directory / METRICS, metrics_bytes)
        self._tensors = AppendedFile(self.directory / TENSORS, tensors_bytes)
        for _ in range(start_step - num_blocks):
            self._write_block(None)
        self._tensors.flush()
        # Last: until then a process that is killed has changed nothing.
        atomic_write_json(
            self.directory / NAMES, self.tensor_names, indent=None
        )

    def _known_names(self) -> list[str]:
        return json.loads((self.directory / NAMES).read_text())

    def _sizes(self, num_lines: int, num_blocks: int) -> tuple[int, int]:
        """Return the bytes that both files keep."""
        metrics = self.directory / METRICS
        lines = metrics.read_bytes().splitlines(True) if num_lines else []
        block = len(QUANTITIES) * len(self.tensor_names) * 4
        tensors = self.directory / TENSORS
        size = tensors.stat().st_size if tensors.exists() else 0
        if len(lines) < num_lines or size < num_blocks * block:
            raise ValueError(
                f"{self.directory} holds {len(lines)} steps, fewer than the "
                f"{num_lines} to resume from"
            )
        return sum(map(len, lines[:num_lines])), num_blocks * block

    def append(
        self, metrics: dict[str, Any], tensors: np.ndarray | None = None
    ) -> None:
        """Write one step: JSON values, with ``step`` and ``loss`` among them.

        ``tensors``: ``[len(QUANTITIES), num_tensors]``, NaN where unknown.
        """
        self._write_block(tensors)
        self._metrics.write(json.dumps(metrics).encode() + b"\n")

    def _write_block(self, tensors: np.ndarray | None) -> None:
        shape = (len(QUANTITIES), len(self.tensor_names))
        if tensors is None:
            tensors = np.full(shape, np.nan)
        assert tensors.shape == shape
        self._tensors.write(np.asarray(tensors, "<f4").tobytes())

    def flush(self) -> None:
        """Hand all data to the operating system."""
        self._tensors.flush()
        self._metrics.flush()

    def sync(self) -> Description:
        """Put all steps on the disk; return the files' sizes and checksums."""
        return {
            METRICS: self._metrics.sync(),
            TENSORS: self._tensors.sync(),
            **describe(self.directory, [NAMES]),
        }

    def close(self) -> None:
        """Flush and close the files."""
        self._tensors.close()
        self._metrics.close()


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
    target = Path(directory) / "run.json"
    old = read_run_json(directory)
    atomic_write_json(target, {**old, **facts}, indent=1)


@contextlib.contextmanager
def lock_run(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Lock a run directory against other processes that would write to it.

    The lock ends with this process, even if it is killed; forked processes,
    such as data loaders, do not hold it. On a file system without locks there
    is only a warning. A new directory is removed again if it stays empty.
    """
    is_new = not Path(directory).exists()
    make_directory(directory)
    descriptor = os.open(directory, os.O_RDONLY)
    _HELD.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(
                f"another process is writing to {directory}: wait for it, stop "
                "it, or choose another train.output_dir"
            ) from None
        except OSError as error:
            logging.getLogger(__name__).warning(
                "no lock on %s (%s): do not start a second run there",
                directory,
                error,
            )
        yield
    finally:
        _HELD.remove(descriptor)
        os.close(descriptor)
        if is_new:
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(directory)


def mark_stopped(directory: str | os.PathLike[str]) -> None:
    """Take ``"running"`` out of ``run.json``, unless a process does run it."""
    with contextlib.suppress(OSError), lock_run(directory):
        if read_run_json(directory).get("status") == "running":
            update_run_json(directory, status="stopped")


def _release_in_child() -> None:
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


_HELD: set[int] = set()
os.register_at_fork(after_in_child=_release_in_child)


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
    where a step has no value: ``loss``, ``learning_rate``,
    ``global_grad_norm``, ``clipped_fraction``, ``nonfinite``,
    ``clip_seconds``, ``step_seconds``, ``eval_loss`` (mostly NaN), and
    whatever else was logged."""

    faults: dict[int, list[dict[str, Any]]]
    """Injected faults by step: each ``{"kind": str, "tensors": [str, ...]}``
    (``tensors`` is empty for faults of the batch)."""

    tensor_names: list[str]
    tensors: dict[str, np.ndarray]
    """Every name of :data:`QUANTITIES` as ``[num_steps, num_tensors]``
    float32: gradient norm before (``norm``) and after (``clipped_norm``) the
    clip, ``gamma`` after the step (NaN without AdaGC), and the norms of the
    optimizer's first and second moments after the step (NaN if not logged)."""

    @property
    def loss(self) -> np.ndarray:
        """Training loss, ``[num_steps]`` float64."""
        return self.metrics["loss"]

    @property
    def num_steps(self) -> int:
        """Number of logged optimizer steps."""
        return len(self.loss)

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
    def load(
        cls, directory: str | os.PathLike[str], *, verify: bool = False
    ) -> RunRecord:
        """Read a run directory; a half-written last step is left out.

        A ValueError names what is damaged; ``verify``: :func:`check_record`.
        """
        path = Path(directory)
        run = read_run_json(path)
        check_record(path, run, verify=verify)
        rows = read_rows(path / METRICS)
        names = read_names(path / NAMES)
        raw = np.fromfile(path / TENSORS, "<f4")
        shape = (len(QUANTITIES), len(names))
        if names:
            count = min(len(rows), raw.size // (shape[0] * shape[1]))
            rows = rows[:count]
        blocks = raw[: len(rows) * shape[0] * shape[1]].reshape(
            len(rows), *shape
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


def check_record(
    directory: str | os.PathLike[str],
    run: dict[str, Any],
    *,
    verify: bool = False,
) -> None:
    """Compare an ended run's record with what its ``run.json`` says of it.

    Runs that have not ended, and those of older versions, pass. Of
    ``tensors.f32`` the size alone is compared, unless all is to be verified.
    """
    described = run.get("record", {})
    if run.get("status") not in ENDED or not described:
        return
    small = {k: v for k, v in described.items() if k != TENSORS}
    fault = find_fault(Path(directory), described, verify=verify) or (
        find_fault(Path(directory), small)
    )
    if fault:
        raise ValueError(f"the record in {directory} is damaged: {fault}{FIX}")
