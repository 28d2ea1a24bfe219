# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Outlier steps whose update is left out, decided on the device.

After OLMo-core's ``SkipStepOptimizer``: a step is an outlier if its loss or its
gradient norm lies far above their rolling mean. Parameters, moments, the clip's
state and its step count then stay as they were; the learning rate and the data
move on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.nn.clip import ClipGradBase
from paddle.optimizer import Optimizer

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.numerics import unchecked
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.optimizers.decoupled import assign_

WINDOW = 128
"""Preceding steps to compare with."""

FIRST = 64
"""Steps before the first that can be an outlier."""


class OutlierGate:
    """Decide on the device whether to leave a step's update out.

    A step is an outlier if its loss is not finite, or if loss or gradient norm
    is above mean plus ``sigma`` standard deviations of the last
    :data:`WINDOW` steps. An outlier enters those as that limit, so a level that
    stays higher is accepted in the end.

    Args:
        sigma: Distance from the mean, in standard deviations.

    Attributes:
        losses: Of the step's micro-batches on this rank; empty if other ranks
            know them.
        skip: Whether the update of this step is left out, bool ``[1]``.
    """

    def __init__(self, sigma: float) -> None:
        self.losses: list[Tensor] = []
        self.skip = paddle.zeros([1], "bool")
        self._sigma = sigma
        self._past = paddle.full([2, WINDOW], np.nan, "float64")

    @unchecked()
    def judge(self, squared_norm: Tensor, *, may_skip: bool) -> None:
        """Judge a step; every rank calls this, and finds the same.

        Args:
            squared_norm: Of the whole gradient, float64 ``[1]``.
            may_skip: Otherwise the step only enters the past.
        """
        values = paddle.concat([self._loss(), squared_norm.sqrt()])[:, None]
        past = self._past
        is_known = paddle.isfinite(past)
        zero = paddle.zeros_like(past)
        count = is_known.astype("float64").sum(1, keepdim=True)
        mean = paddle.where(is_known, past, zero).sum(1, keepdim=True) / count
        squares = paddle.where(is_known, (past - mean).square(), zero)
        variance = squares.sum(1, keepdim=True) / (count - 1)
        limit = mean + self._sigma * variance.sqrt()
        can_judge = count >= FIRST
        is_high = paddle.logical_and(can_judge, values > limit)
        is_finite = paddle.isfinite(values)
        seen = paddle.where(is_high, limit, values)
        seen = paddle.where(is_finite, seen, paddle.full_like(seen, np.nan))
        self._past = paddle.concat([past[:, 1:], seen], axis=1)
        outlier = paddle.logical_or(is_high, ~is_finite).any().reshape([1])
        self.skip = outlier if may_skip else paddle.zeros([1], "bool")

    def _loss(self) -> Tensor:
        """Return the mean loss over the ranks that know one, ``[1]``."""
        losses = [x.detach().astype("float64") for x in self.losses]
        zero = paddle.zeros([1], "float64")
        total = paddle.concat(
            [
                paddle.add_n([zero, *(loss.reshape([1]) for loss in losses)]),
                zero + len(losses),
            ]
        )
        if dist.get_world_size() > 1:
            dist.all_reduce(total)
        return total[:1] / total[1:]

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON values; waits."""
        return {"past": self._past.tolist()}

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume."""
        self._past = paddle.to_tensor(state["past"], "float64")


class SkippingClip(ClipGradBase):
    """Call a clip, let the gate judge its norms, take its state back.

    Args:
        outer: What is called: the clip, or what observes it.
        clip: The clip.
        gate: The gate.
    """

    def __init__(
        self, outer: ClipGradBase, clip: TensorScalingClip, gate: OutlierGate
    ) -> None:
        super().__init__()
        self._outer, self._clip, self._gate = outer, clip, gate

    def __str__(self) -> str:
        """Return the clip's own description."""
        return str(self._clip)

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: Any) -> Any:
        before = self._clip.memory()
        clipped = self._outer(params_grads)
        self._gate.judge(
            self._clip.global_squared_norm(),
            may_skip=self._clip.num_steps > self._clip.num_warmup_steps,
        )
        self._clip.take_back(self._gate.skip, before)
        return clipped


def make_gate(config: RunConfig, clip: ClipGradBase) -> OutlierGate | None:
    """Make the gate of a run; None if it skips no steps.

    Raises:
        ValueError: The run's clip measures no norms.
    """
    if not config.monitor.skip_step:
        return None
    if not isinstance(clip, TensorScalingClip):
        raise ValueError(
            f"monitor.skip_step with clip.name={config.clip['name']!r}: it "
            "needs the gradient norm, which adagc, global_adagc, tensor_wise, "
            "zclip and agc measure"
        )
    return OutlierGate(config.monitor.skip_sigma)


def guard_updates(optimizer: Optimizer, gate: OutlierGate) -> None:
    """Let an optimizer keep everything as it was in a step that is skipped.

    A parameter's update is made and taken back, without a look at the gate:
    while it is made there is a copy of one parameter and of its state.

    Args:
        optimizer: One that keeps its whole state in Paddle's accumulators, as
            those of :mod:`paddle_adagc.lab.train.optimizers` do.
        gate: The gate.
    """
    update = optimizer._append_optimize_op

    @paddle.no_grad()
    def guarded(block: Any, param_and_grad: Any) -> Any:
        is_group = isinstance(param_and_grad, dict)
        pair = param_and_grad["params"] if is_group else param_and_grad
        tensors = _state_of(optimizer, pair[0])
        before = [tensor.clone() for tensor in tensors]
        result = update(block, param_and_grad)
        for tensor, old in zip(tensors, before, strict=True):
            skip = gate.skip.expand(tensor.shape)
            assign_(tensor, paddle.where(skip, old, tensor))
        return result

    optimizer._append_optimize_op = guarded


def _state_of(optimizer: Optimizer, parameter: Tensor) -> list[Tensor]:
    """Return a parameter, its master weight and its accumulators."""
    master = optimizer._master_weights.get(parameter.name)
    weights = [parameter] if master is None else [parameter, master]
    return weights + [
        held[weight.name]
        for held in optimizer._accumulators.values()
        for weight in weights
        if weight.name in held
    ]
