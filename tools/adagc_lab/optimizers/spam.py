# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""SPAM: AdamW that clips spikes element by element and resets its moments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor

from adagc_lab.optimizers import base
from adagc_lab.optimizers.base import AdamLike, adam_update, square_root
from paddle_adagc.checks import check_integer


class SPAM(AdamLike):
    r"""Spike-aware Adam with momentum reset (Huang et al. 2025).

    AdamW with three changes (arXiv 2501.06842, algorithm 1):

    - An element of the gradient is cut to :math:`|g| = \sqrt{\theta v}`, with
      the second moment :math:`v` before this step. Elements with :math:`v = 0`
      pass. The algorithm as written makes them 0, and :math:`v` would stay 0
      for ever (an embedding's row that comes up late).
    - The moments start again from 0 in every step that is a multiple of
      :math:`\Delta T`.
    - In the reset step and the ones after it, :math:`k = 0, 1, ..., N - 1`, the
      update is scaled, as in the authors' code, by
      :math:`1 - 0.99 (1 + \cos(\pi k / (N + 1))) / 2`.

    Bias correction counts on through resets and the weight decay is not warmed
    up, both as in the authors' code. Works under every kind of sharding.

    Args:
        learning_rate: A number or a scheduler.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        threshold: :math:`\theta`, the largest :math:`g^2 / v` that passes.
        reset_interval: :math:`\Delta T`, steps from reset to reset.
        warmup_steps: :math:`N`, steps of the warm-up after a reset.
        clip_start: Steps from the start and from a reset on without clipping;
            20 in the authors' code. (The second moment knows nothing yet.)
        parameters: Parameters; no groups of them.
        weight_decay: Not negative.
        **shared: See :class:`.base.DecoupledOptimizer`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range, or ``clip_start`` is not
            below ``reset_interval``: nothing would ever be clipped.

    Example:
        >>> import paddle
        >>> from adagc_lab.optimizers import SPAM
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = SPAM(3e-4, parameters=model.parameters())
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        learning_rate: base.LearningRate,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        threshold: float = 5000.0,
        reset_interval: int = 500,
        warmup_steps: int = 150,
        clip_start: int = 20,
        parameters: Sequence[Tensor] | None = None,
        weight_decay: float = 0.0,
        **shared: Any,
    ) -> None:
        self._interval = check_integer("reset_interval", reset_interval, 1)
        self._warmup_steps = check_integer("warmup_steps", warmup_steps, 0)
        self._clip_start = check_integer("clip_start", clip_start, 0)
        if clip_start >= reset_interval:
            raise ValueError(
                f"clip_start={clip_start} must be below "
                f"reset_interval={reset_interval}: nothing would be clipped"
            )
        options = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        options |= {"threshold": threshold, "weight_decay": weight_decay}
        super().__init__(learning_rate, parameters, options, **shared)

    def _start(self, parameter: Tensor) -> base.Start:
        return {**super()._start(parameter), "step": 0}

    def _update(self, step: base.ParameterStep) -> None:
        count, gradient = step.state["step"], step.gradient
        count.add_(paddle.ones_like(count))
        since_reset = (count % self._interval).reshape([])
        for name in ("moment1", "moment2"):
            # Not by a product: the second moment may be infinite.
            moment = step.state[name]
            zeros = paddle.zeros_like(moment)
            paddle.assign(paddle.where(since_reset > 0, moment, zeros), moment)
        square = step.state["moment2"]
        bound = square_root(step.options["threshold"] * square)
        clipped = paddle.sign(gradient) * paddle.minimum(gradient.abs(), bound)
        is_clipped = (since_reset >= self._clip_start) & (square > 0)
        update, _ = adam_update(
            step, paddle.where(is_clipped, clipped, gradient)
        )
        angle = since_reset.astype("float64")
        angle = angle * (math.pi / (self._warmup_steps + 1))
        rising = 1 - 0.99 * (1 + paddle.cos(angle)) / 2
        is_warmup = (count >= self._interval).reshape([])
        is_warmup = is_warmup & (since_reset < self._warmup_steps)
        scale = paddle.where(is_warmup, rising, paddle.ones_like(rising))
        step.take(step.lr * scale.astype(step.lr.dtype) * update)
