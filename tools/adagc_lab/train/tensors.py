# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run records of every tensor at every step: ``record.tensors``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from adagc_lab.clips import ComparedClip
from adagc_lab.clips.measured import MeasuredClip
from adagc_lab.record.files import QUANTITIES
from adagc_lab.train.config import RecordConfig
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.optimizer import put_into_optimizer

_MOMENTS = QUANTITIES[3:]


class TensorColumns:
    """Norms, gamma and moments of a model's tensors, step by step.

    ``measured`` has the norms before and after the clip, once :meth:`measure`
    was called; :meth:`begin_step` and :meth:`row` enclose a step.
    """

    def __init__(self, config: RecordConfig, model: nn.Layer) -> None:
        self.parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if not parameter.stop_gradient
        }
        self.names = [*self.parameters] if config.tensors else []
        self.measured: MeasuredClip | None = None
        self._has_moments = config.moments
        self._weights: list[Tensor] = []  # before the step
        self._optimizer: Any = None

    def measure(self, optimizer: Any, is_due: Callable[[], bool]) -> None:
        """Measure the clip of an optimizer, in the steps that are due."""
        keys = {p.name: key for key, p in self.parameters.items()}
        clip = optimizer._grad_clip
        self._optimizer = optimizer
        self.measured = MeasuredClip(clip, keys, is_due)
        put_into_optimizer(optimizer, self.measured)

    def begin_step(self) -> None:
        """Keep the weights, if the update is recorded."""
        if self._has_moments:
            self._weights = [p.clone() for p in self.parameters.values()]

    def row(self) -> tuple[dict[str, float], np.ndarray]:
        """Return the step's own numbers and its block for the record.

        The block is float32 ``[len(QUANTITIES), num_tensors]``, NaN where
        nothing is known.
        """
        assert self.measured is not None
        gamma, block = _gamma(self.measured.clip), []
        for key in self.parameters:
            row = self.measured.tensors.get(key)
            known: list[float | None] = [None] * 3
            if row is not None:
                known = [row["norm"], row["clipped_norm"], gamma.get(key)]
            block.append([*known, None, None])
        table = np.array(block, np.float32).T
        numbers = {"clip_seconds": self.measured.seconds}
        if self._has_moments:
            table[-len(_MOMENTS) :] = self._moment_norms()
            numbers |= self._step_size()
        return numbers, table

    @paddle.no_grad()
    def _step_size(self) -> dict[str, float]:
        """L2 norm of the step's update; root of the second moments' sum."""
        after = self.parameters.values()
        update = [p - w for p, w in zip(after, self._weights, strict=True)]
        moments = self._optimizer._accumulators[_MOMENTS[1]].values()
        total = sum(float(moment.sum()) for moment in moments)
        norm = GradientList(update).squared_norms().sum()
        return {
            "update_norm": math.sqrt(float(norm)),
            "second_moment_root": math.sqrt(total),
        }

    def _moment_norms(self) -> np.ndarray:
        rows = []
        for moment in _MOMENTS:
            held = self._optimizer._accumulators[moment]
            values = [held.get(p.name) for p in self.parameters.values()]
            rows.append(np.sqrt(GradientList(values).squared_norms().numpy()))
        return np.stack(rows)


def _gamma(clip: Any) -> dict[str, float]:
    """Return each tensor's gamma, of a clip that has one."""
    if isinstance(clip, ClipGradByAdaGC):
        tensors = clip.metrics()["tensors"]
        return {key: row["gamma"] for key, row in tensors.items()}
    if isinstance(clip, ComparedClip) and "gamma" in clip.vectors:
        state = clip.state_dict()
        return dict(zip(state["keys"], state["state"]["gamma"], strict=True))
    return {}
