# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: a run's last steps, kept in memory for an event."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.metrics import Rows, Snapshot
from paddle_adagc.lab.record.flight import Flight, event_path, rotate_events

logger = logging.getLogger(__name__)
_NUM_KEPT = 200


@dataclasses.dataclass
class _Step:
    step: int
    learning_rate: float
    samples: list[int]
    losses: list[Any]
    tensors: Snapshot | Rows | None = None


class FlightRecorder:
    """Keep the last steps of this rank, and write them when asked.

    A step keeps references to what the clip has computed, so the host waits for
    nothing; :meth:`to_host` copies where the host waits anyway. Tensors are
    recorded if ``clip``, the run's, is a :class:`TensorScalingClip`.
    """

    def __init__(self, directory: str) -> None:
        self.clip: ClipGradBase | None = None
        self._directory = Path(directory)
        self._steps = deque[_Step](maxlen=_NUM_KEPT)

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
        self._steps.append(_Step(step, learning_rate, samples, losses))

    def end(self) -> None:
        """Take what the clip knows of the step that was begun last."""
        if self._steps and isinstance(self.clip, TensorScalingClip):
            self._steps[-1].tensors = self.clip.snapshot()

    def to_host(self) -> None:
        """Copy what is still on the device; waits for it."""
        for step in self._steps:
            step.losses = [float(loss) for loss in step.losses]
            if isinstance(step.tensors, Snapshot):
                step.tensors, _ = step.tensors.rows()

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
        steps = self._steps
        rows = [s.tensors for s in steps if isinstance(s.tensors, Rows)]
        names = rows[-1].keys if rows else []
        shape = (len(steps), len(names))
        tables = {
            name: np.full(shape, np.nan, np.float32)
            for name in ("norm", "h", "gamma")
        }
        for i, step in enumerate(steps):
            if isinstance(step.tensors, Rows):
                for name in {*tables} & {*step.tensors.columns}:
                    column = step.tensors.columns[name]
                    tables[name][i, : len(column)] = column
        return Flight(
            reason=np.array(reason),
            tensor_names=np.array(names, "U"),
            step=np.array([s.step for s in steps], np.int64),
            samples=np.array([s.samples for s in steps], np.int64),
            learning_rate=np.array([s.learning_rate for s in steps]),
            loss=np.array(
                [np.mean(s.losses) if s.losses else math.nan for s in steps]
            ),
            **tables,
        )
