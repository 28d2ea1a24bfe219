# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: a run's last steps, kept in memory for an event."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.metrics import Rows, Snapshot
from paddle_adagc.lab.record.flight import Flight, event_path, rotate_events
from paddle_adagc.lab.train.console import short_name
from paddle_adagc.lab.train.processes import gather

logger = logging.getLogger(__name__)
_NUM_WORST = 3


@dataclasses.dataclass
class _Step:
    step: int
    learning_rate: float
    samples: list[int]
    losses: list[Any]
    rng: list[Any]
    tensors: Snapshot | Rows | None = None

    def to_host(self) -> None:
        self.losses = [float(loss) for loss in self.losses]
        if isinstance(self.tensors, Snapshot):
            self.tensors, _ = self.tensors.rows()

    def worst(self, before: _Step | None) -> list[tuple[float, str, int]]:
        """Return the highest norms, over gamma before the step if there is one.

        Those that are not finite count as infinite.
        """
        if not isinstance(self.tensors, Rows):
            return []
        norm = ratio = self.tensors.columns["norm"]
        gamma = None if before is None else before.column("gamma")
        if gamma is not None and len(gamma) == len(norm):
            with np.errstate(all="ignore"):
                ratio = np.where(np.isfinite(gamma), norm / gamma, 1.0)
        ratio = np.where(np.isfinite(norm), ratio, np.inf)
        highest = np.argsort(-ratio, kind="stable")[:_NUM_WORST]
        return [
            (float(ratio[i]), self.tensors.keys[i], self.step) for i in highest
        ]

    def column(self, name: str) -> np.ndarray | None:
        if not isinstance(self.tensors, Rows):
            return None
        return self.tensors.columns.get(name)


class FlightRecorder:
    """Keep the last steps of this rank, and write them when asked.

    A step keeps references to what the clip has computed, so the host waits for
    nothing; :meth:`to_host` copies where the host waits anyway. Tensors are
    recorded if ``clip``, the run's, is a :class:`TensorScalingClip`. With 0
    steps to keep nothing is written.
    """

    def __init__(self, directory: str, num_steps: int) -> None:
        self.clip: ClipGradBase | None = None
        self._directory = Path(directory)
        self._steps = deque[_Step](maxlen=num_steps)

    def begin(
        self,
        step: int,
        learning_rate: float,
        samples: list[int],
        losses: list[Any],
    ) -> None:
        """Begin a step, which stays recorded if it is never finished.

        The lists of its samples (first, and the one after the last) and of its
        losses, on the device, may change later.
        """
        if self._steps.maxlen:
            rng = paddle.get_rng_state()
            self._steps.append(_Step(step, learning_rate, samples, losses, rng))

    def end(self) -> None:
        """Take what the clip knows of the step that was begun last."""
        if self._steps and isinstance(self.clip, TensorScalingClip):
            self._steps[-1].tensors = self.clip.snapshot()

    def to_host(self) -> None:
        """Copy what is still on the device; waits for it."""
        for step in self._steps:
            step.to_host()

    def worst_tensors(self, first: int, last: int) -> str:
        """Say which norms of the steps are highest, over gamma if there is one.

        Every process calls this, after :meth:`to_host`. Three tensors of all
        ranks at most are named; empty if no norm is known.
        """
        found: list[tuple[float, str, int]] = []
        for before, step in itertools.pairwise([None, *self._steps]):
            if step is not None and first <= step.step <= last:
                found += step.worst(before)
        everywhere = sorted(itertools.chain(*gather(found)))
        worst_of = {key: (ratio, step) for ratio, key, step in everywhere}
        worst = sorted(worst_of.items(), key=lambda item: -item[1][0])
        texts = [
            f"{short_name(key)} {ratio:.3g} at step {step}"
            for key, (ratio, step) in worst[:_NUM_WORST]
        ]
        has_gamma = any(s.column("gamma") is not None for s in self._steps)
        what = "highest norm over gamma" if has_gamma else "highest norm"
        return f"{what}: {', '.join(texts)}" if texts else ""

    def write(self, event: str, reason: str) -> None:
        """Write this rank's file, named after one word for the event."""
        if not self._steps:
            return
        self.to_host()
        rank = dist.get_rank()
        path = event_path(self._directory, self._steps[-1].step, event, rank)
        self._flight(reason).save(path)
        rotate_events(self._directory, rank)

    def write_crash(self, error: BaseException) -> None:
        """Write an exception's file; an error of that is only logged."""
        try:
            self.write("crash", f"{type(error).__name__}: {error}")
        except Exception as other:
            logger.warning("the flight record was not written: %s", other)

    def _flight(self, reason: str) -> Flight:
        rows = [s.tensors for s in self._steps if isinstance(s.tensors, Rows)]
        names = rows[-1].keys if rows else []
        return Flight(
            reason=np.array(reason),
            tensor_names=np.array(names, "U"),
            step=np.array([s.step for s in self._steps], np.int64),
            samples=np.array([s.samples for s in self._steps], np.int64),
            learning_rate=np.array([s.learning_rate for s in self._steps]),
            loss=np.array([_mean(s.losses) for s in self._steps]),
            rng=np.array([_text(s.rng) for s in self._steps], "S"),
            **{
                name: self._column(name, len(names))
                for name in ("norm", "h", "gamma")
            },
        )

    def _column(self, name: str, num_tensors: int) -> np.ndarray:
        table = np.full((len(self._steps), num_tensors), np.nan, np.float32)
        for row, step in zip(table, self._steps, strict=True):
            if (column := step.column(name)) is not None:
                row[: len(column)] = column
        return table


def _mean(losses: list[float]) -> float:
    return sum(losses) / len(losses) if losses else math.nan


def _text(states: list[Any]) -> str:
    """Return generators' states: seed, offset, the engine's numbers."""
    parts = [state.__getstate__()[1:] for state in states]
    return "; ".join(
        f"{seed} {offset} {bytes(engine).decode()}"
        for seed, offset, engine in parts
    )
