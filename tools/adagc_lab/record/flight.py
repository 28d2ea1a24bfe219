# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: a rank's last steps, kept in memory for an event.

``RUN/flight/STEP-EVENT.rankN.npz``, whole or not at all. All ranks give
the files of one event the same name, except after a crash of one rank.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase
from typing_extensions import Self

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.last_step import LastStep, Rows
from paddle_adagc.files import atomic_write

logger = logging.getLogger(__name__)
FOLDER = "flight"
NUM_STEPS = 200
"""Steps that are kept in memory."""

NUM_KEPT = 8
"""Events that a rank keeps; older ones are removed."""

_TABLES = ("norm", "h", "gamma")
MAX_BYTES = 256 * 2**20
"""Largest file that is read, unpacked: 20,000 tensors in 1,000 steps."""


@dataclasses.dataclass(frozen=True)
class Flight:
    """The last steps of one rank, the oldest first."""

    reason: np.ndarray  # what happened, a string of shape []
    tensor_names: np.ndarray  # tensors of this rank, strings [num_tensors]
    step: np.ndarray  # [num_steps], int64, from 0
    samples: np.ndarray
    """First sample and the one after the last, in the order of the training
    dataset and over all ranks, int64 ``[num_steps, 2]``."""

    learning_rate: np.ndarray  # [num_steps], float64
    loss: np.ndarray
    """Of this rank, float64 ``[num_steps]``; NaN where it knows none, as on
    all pipeline stages but the last."""

    norm: np.ndarray
    """Norm of each gradient before the clip, float32 ``[num_steps,
    num_tensors]``; NaN in a step that was not finished, or without a clip."""

    h: np.ndarray  # like norm: the clip's factor
    gamma: np.ndarray  # like norm: AdaGC's gamma after the step

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all, into a run that is there."""
        content = io.BytesIO()
        np.savez_compressed(content, **dataclasses.asdict(self))
        path.parent.mkdir(exist_ok=True)
        atomic_write(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; a ValueError names a damaged one."""
        names = [field.name for field in dataclasses.fields(cls)]
        try:
            with np.load(path, allow_pickle=False) as found:
                size = sum(member.file_size for member in found.zip.infolist())
                if size > MAX_BYTES:
                    raise ValueError(f"{size:,} bytes, above {MAX_BYTES:,}")
                flight = cls(**{name: found[name] for name in names})
            flight._check()
        except Exception as error:  # wrong bytes raise anything
            raise ValueError(f"{path} is damaged: {error}") from error
        return flight

    def _check(self) -> None:
        steps, tensors = self.step.size, self.tensor_names.size
        text, vector, table = ("U", (tensors,)), (steps,), (steps, tensors)
        for name, (kind, shape) in {
            "reason": ("U", ()),
            "tensor_names": text,
            "step": ("i", vector),
            "samples": ("i", (steps, 2)),
            **dict.fromkeys(("learning_rate", "loss"), ("f", vector)),
            **dict.fromkeys(_TABLES, ("f", table)),
        }.items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype.kind != kind:
                raise ValueError(
                    f"{name} is {array.dtype} {array.shape}, not {shape}"
                )
        if not steps:
            raise ValueError("it holds no steps")


@dataclasses.dataclass(frozen=True)
class Event:
    """The files that ranks wrote at one event."""

    name: str
    ranks: Sequence[Flight]

    @property
    def first(self) -> Flight:
        """The first rank that wrote a file."""
        return self.ranks[0]

    def place(self, step: int | None) -> int:
        """Return a recorded step's place in the vectors.

        None stands for the last step with norms, or without any the last one.
        """
        if step is not None:
            return self.first.step.tolist().index(step)
        has_norms = ~np.isnan(self.first.norm).all(axis=1)
        places = np.flatnonzero(has_norms)
        return int(places[-1] if len(places) else len(has_norms) - 1)

    def loss(self, step: int) -> float:
        """Return a step's loss, the mean over the ranks that know it."""
        losses = np.concatenate([f.loss[f.step == step] for f in self.ranks])
        known = losses[~np.isnan(losses)]
        return float(known.mean()) if len(known) else math.nan

    def tensors(self, step: int) -> dict[str, tuple[float, float, float]]:
        """Return norm, h and gamma of every tensor, over all ranks."""
        found: dict[str, tuple[float, float, float]] = {}
        for flight in self.ranks:
            for i in np.flatnonzero(flight.step == step)[-1:]:
                names = flight.tensor_names.tolist()
                rows = np.stack([flight.norm[i], flight.h[i], flight.gamma[i]])
                for name, row in zip(names, rows.T.tolist(), strict=True):
                    if row[0] or name not in found:
                        found[name] = (row[0], row[1], row[2])
        return found


def _by_age(directory: Path, pattern: str) -> list[Path]:
    paths = (directory / FOLDER).glob(pattern)
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)


def load_event(directory: Path, step: int | None = None) -> Event | None:
    """Read a run's newest event, or the newest that recorded a step."""
    ranks: dict[str, dict[int, Path]] = {}
    for path in _by_age(directory, "*.rank*.npz"):
        name, rank = path.stem.rsplit(".rank", 1)
        ranks.setdefault(name, {})[int(rank)] = path
    for name, paths in ranks.items():
        event = Event(
            name, [Flight.load(paths[rank]) for rank in sorted(paths)]
        )
        if step is None or step in event.first.step:
            return event
    return None


def event_path(directory: Path, step: int, event: str, rank: int) -> Path:
    """Return a rank's file of an event after so many steps."""
    return directory / FOLDER / f"{step:08d}-{event}.rank{rank}.npz"


@dataclasses.dataclass
class _Step:
    row: dict[str, Any]
    losses: list[Any]
    tensors: LastStep | Rows | None = None


class FlightRecorder:
    """Keep the last steps of this rank, and write them when asked.

    A step keeps references to what the clip has computed, so the host waits for
    nothing; :meth:`to_host` copies where the host waits anyway. Tensors are
    recorded if ``clip``, the run's, is a :class:`TensorScalingClip`.
    """

    def __init__(self, directory: str) -> None:
        self.clip: ClipGradBase | None = None
        self._directory = Path(directory)
        self._steps = deque[_Step](maxlen=NUM_STEPS)

    def begin(self, row: dict[str, Any]) -> None:
        """Begin a step, which stays recorded if it is never finished.

        ``row``: ``step``, ``learning_rate``, ``samples`` (first, and the one
        after the last) and the list ``loss``, which both may still change.
        """
        self._steps.append(_Step(row, row["loss"]))

    def end(self) -> None:
        """Take what the clip knows of the step that was begun last."""
        if self._steps and isinstance(self.clip, TensorScalingClip):
            self._steps[-1].tensors = self.clip.snapshot()

    def to_host(self) -> None:
        """Copy what is still on the device; waits for it."""
        for step in self._steps:
            step.losses = [float(loss) for loss in step.losses]
            if isinstance(step.tensors, LastStep):
                step.tensors = step.tensors.rows()

    def write(self, event: str, reason: str) -> None:
        """Write this rank's file, named after one word for the event."""
        if not self._steps:
            return
        self.to_host()
        rank, step = dist.get_rank(), self._steps[-1].row["step"]
        path = event_path(self._directory, step, event, rank)
        self._flight(reason).save(path)
        for old in _by_age(self._directory, f"*.rank{rank}.npz")[NUM_KEPT:]:
            old.unlink()

    def write_crash(self, error: BaseException) -> None:
        """Write an exception's file; an error of that is only logged."""
        try:
            self.write("crash", f"{type(error).__name__}: {error}")
        except Exception as other:
            logger.warning("the flight record was not written: %s", other)

    def _flight(self, reason: str) -> Flight:
        steps = self._steps
        rows = [s.tensors for s in steps if isinstance(s.tensors, Rows)]
        names = rows[-1].keys if rows else []
        shape = (len(steps), len(names))
        tables = {name: np.full(shape, np.nan, "float32") for name in _TABLES}
        for i, step in enumerate(steps):
            if isinstance(step.tensors, Rows):
                for name in {*tables} & {*step.tensors.columns}:
                    column = step.tensors.columns[name]
                    tables[name][i, : len(column)] = column
        losses = [np.mean(s.losses) if s.losses else math.nan for s in steps]
        return Flight(
            reason=np.array(reason),
            tensor_names=np.array(names, "U"),
            step=np.array([s.row["step"] for s in steps], np.int64),
            samples=np.array([s.row["samples"] for s in steps], np.int64),
            learning_rate=np.array([s.row["learning_rate"] for s in steps]),
            loss=np.array(losses),
            **tables,
        )
