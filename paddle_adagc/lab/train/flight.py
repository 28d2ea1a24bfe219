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
import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.rule_state import Rows, Snapshot
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
    tensors: Snapshot | Rows | None = None


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

    def worst_tensors(self, first: int, last: int) -> str:
        """Say which norms of the steps are highest, over gamma if there is one.

        Every process calls this, after :meth:`to_host`. Three tensors of all
        ranks at most are named; empty if no norm is known.
        """
        found: list[tuple[float, str, int]] = []
        for before, step in itertools.pairwise([None, *self._steps]):
            if step is not None and first <= step.step <= last:
                found += _worst(step, before)
        everywhere = sorted(itertools.chain(*gather(found)))
        worst_of = {key: (ratio, step) for ratio, key, step in everywhere}
        worst = sorted(worst_of.items(), key=lambda item: -item[1][0])
        texts = [
            f"{short_name(key)} {ratio:.3g} at step {step}"
            for key, (ratio, step) in worst[:_NUM_WORST]
        ]
        has_gamma = any("gamma" in _columns(step) for step in self._steps)
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
        steps = self._steps
        rows = [s.tensors for s in steps if isinstance(s.tensors, Rows)]
        names = rows[-1].keys if rows else []
        shape = (len(steps), len(names))
        tables = {
            name: np.full(shape, np.nan, np.float32)
            for name in ("norm", "h", "gamma")
        }
        for i, step in enumerate(steps):
            for name, column in _columns(step).items():
                if name in tables:
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


def _columns(step: _Step | None) -> dict[str, np.ndarray]:
    is_known = step is not None and isinstance(step.tensors, Rows)
    return step.tensors.columns if is_known else {}


def _worst(step: _Step, before: _Step | None) -> list[tuple[float, str, int]]:
    """Return the highest norms, over gamma before the step if there is one.

    Those that are not finite count as infinite.
    """
    if not isinstance(step.tensors, Rows):
        return []
    norm = ratio = step.tensors.columns["norm"]
    gamma = _columns(before).get("gamma")
    if gamma is not None and len(gamma) == len(norm):
        with np.errstate(all="ignore"):
            ratio = np.where(np.isfinite(gamma), norm / gamma, 1.0)
    ratio = np.where(np.isfinite(norm), ratio, np.inf)
    highest = np.argsort(-ratio, kind="stable")[:_NUM_WORST]
    keys = step.tensors.keys
    return [(float(ratio[i]), keys[i], step.step) for i in highest]
