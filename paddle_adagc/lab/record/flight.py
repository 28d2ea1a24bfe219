# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files of the flight recorder: a rank's last steps before an event.

``RUN/flight/STEP-EVENT.rankN.npz``, whole or not at all. All ranks name the
files of one event alike, except after a crash, which may hit one alone.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from typing_extensions import Self

from paddle_adagc.files import atomic_write

FOLDER = "flight"
NUM_KEPT = 8
"""Events that a rank keeps; older ones are removed."""

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
        table = ("f", (steps, tensors))
        for name, (kinds, shape) in {
            "reason": ("U", ()),
            "tensor_names": ("U", (tensors,)),
            "step": ("i", (steps,)),
            "samples": ("i", (steps, 2)),
            **dict.fromkeys(("learning_rate", "loss"), ("f", (steps,))),
            **dict.fromkeys(("norm", "h", "gamma"), table),
        }.items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype.kind not in kinds:
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
                columns = (flight.norm[i], flight.h[i], flight.gamma[i])
                rows = zip(*(c.tolist() for c in columns), strict=True)
                for name, row in zip(
                    flight.tensor_names.tolist(), rows, strict=True
                ):
                    if row[0] or name not in found:
                        found[name] = row
        return found


def events(directory: Path) -> Iterator[str]:
    """Return the names of a run's events, the newest first."""
    paths = sorted(
        (directory / FOLDER).glob("*.rank*.npz"),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    yield from dict.fromkeys(path.name.rsplit(".rank", 1)[0] for path in paths)


def load_event(directory: Path, step: int | None = None) -> Event | None:
    """Read a run's newest event, or the newest that recorded a step."""
    for name in events(directory):
        paths = sorted(
            (directory / FOLDER).glob(f"{name}.rank*.npz"), key=_rank
        )
        event = Event(name, [Flight.load(path) for path in paths])
        if step is None or step in event.first.step:
            return event
    return None


def event_path(directory: Path, step: int, event: str, rank: int) -> Path:
    """Return a rank's file of an event after so many steps."""
    return directory / FOLDER / f"{step:08d}-{event}.rank{rank}.npz"


def rotate_events(directory: Path, rank: int) -> None:
    """Remove all but the newest events of a rank."""
    paths = sorted(
        (directory / FOLDER).glob(f"*.rank{rank}.npz"),
        key=lambda path: path.stat().st_mtime,
    )
    for path in paths[:-NUM_KEPT]:
        path.unlink()


def _rank(path: Path) -> int:
    return int(path.stem.rsplit(".rank", 1)[1])
