# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""SPAM: AdamW that clips spikes element by element and resets its moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import paddle
from paddle import Tensor
from paddle.nn.clip import ClipGradBase
from paddle.optimizer.lr import LRScheduler

from paddle_adagc.checks import check_integer
from paddle_adagc.optimizers.adam import (
    AdamOptimizer,
    adam_direction,
    advance_powers,
    next_moments,
    square_root,
)
from paddle_adagc.optimizers.arguments import check_clip_start
from paddle_adagc.optimizers.base import Parameters, assign_

_STEP = "step"
_DEPTH = 0.99
"""The warm-up after a reset starts from 1 less this share of the step."""


class Phase(NamedTuple):
    """SPAM's schedule in one step; all ``[1]``, on the device."""

    resets: Tensor
    """bool: the moments start again from 0."""

    clips: Tensor
    """bool: spikes are clipped."""

    scale: Tensor
    """float64: factor of the update, below 1 in the warm-up."""


def phase_of(
    step: Tensor, reset_interval: int, warmup_steps: int, clip_start: int
) -> Phase:
    r"""SPAM's schedule (Huang et al. 2025, arXiv 2501.06842, algorithm 1).

    The moments are reset in every step that is a multiple of
    :math:`\Delta T`. In the reset step and the ones after it, :math:`k = 0, 1,
    ..., N - 1`, the update is scaled by

    .. math::  1 - 0.99 \cdot (1 + \cos(\pi k / (N + 1))) / 2

    as in the authors' code.

    Args:
        step: Number of this step, from 1; ``[1]``, int64.
        reset_interval: :math:`\Delta T`.
        warmup_steps: :math:`N`.
        clip_start: Steps from the start and from a reset on in which spikes
            pass: the second moment knows nothing yet.
    """
    since_reset = step % reset_interval
    angle = since_reset.astype("float64") * (math.pi / (warmup_steps + 1))
    rising = 1 - _DEPTH * (1 + paddle.cos(angle)) / 2
    is_warmup = paddle.logical_and(
        step >= reset_interval, since_reset < warmup_steps
    )
    return Phase(
        resets=since_reset == 0,
        clips=since_reset >= clip_start,
        scale=paddle.where(is_warmup, rising, paddle.ones_like(rising)),
    )


def clip_spikes(gradient: Tensor, square: Tensor, threshold: float) -> Tensor:
    r"""Gradient with :math:`|g|` cut to :math:`\sqrt{\theta v}`.

    Elements with :math:`v = 0` pass: to the letter they would become 0, and
    :math:`v` with them for ever (an embedding's row that comes up late).

    Args:
        gradient: :math:`g`.
        square: :math:`v`, the second moment before this step.
        threshold: :math:`\theta`.
    """
    bound = square_root(threshold * square)
    bound = paddle.where(
        square > 0, bound, paddle.full_like(bound, float("inf"))
    )
    return paddle.sign(gradient) * paddle.minimum(gradient.abs(), bound)


class SPAM(AdamOptimizer):
    r"""Spike-aware Adam with momentum reset (Huang et al. 2025).

    AdamW whose gradients go through :func:`clip_spikes` and whose moments and
    step size follow :func:`phase_of`. Bias correction counts on through resets
    and the weight decay is not warmed up, both as in the authors' code. It
    works element by element: under every kind of sharding.

    Args:
        learning_rate: A number or a scheduler.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the square root of the second moment.
        threshold: :math:`\theta`, the largest :math:`g^2 / v` that passes.
        reset_interval: :math:`\Delta T`, steps from reset to reset.
        warmup_steps: :math:`N`, steps of the warm-up after a reset.
        clip_start: Steps from the start and from a reset on without clipping;
            20 in the authors' code.
        parameters: Parameters, or groups of them (see
            :class:`~paddle_adagc.optimizers.base.DecoupledOptimizer`).
        weight_decay: Decoupled weight decay.
        apply_decay_param_fun: Parameter name -> whether the weight decays;
            None: all do.
        grad_clip: Clips the gradients first.
        multi_precision: Keep float32 master weights of low-precision weights.
        name: Prefix of the accumulators' names.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range, or ``clip_start`` not below
            ``reset_interval``: nothing would ever be clipped.
    """

    def __init__(
        self,
        learning_rate: float | LRScheduler,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        threshold: float = 5000.0,
        reset_interval: int = 500,
        warmup_steps: int = 150,
        clip_start: int = 20,
        parameters: Parameters | None = None,
        weight_decay: float = 0.0,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        grad_clip: ClipGradBase | None = None,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        self._reset_interval = check_integer(
            "reset_interval", reset_interval, 1
        )
        self._warmup_steps = check_integer("warmup_steps", warmup_steps, 0)
        self._clip_start = check_integer("clip_start", clip_start, 0)
        check_clip_start(self._clip_start, self._reset_interval)
        super().__init__(
            learning_rate,
            parameters,
            {
                "beta1": beta1,
                "beta2": beta2,
                "epsilon": epsilon,
                "threshold": threshold,
                "weight_decay": weight_decay,
            },
            apply_decay_param_fun=apply_decay_param_fun,
            grad_clip=grad_clip,
            multi_precision=multi_precision,
            name=name,
        )

    def _add_state(
        self,
        parameter: Tensor,
        held: Tensor,
        dtype: Any,
        options: Mapping[str, float],
    ) -> None:
        super()._add_state(parameter, held, dtype, options)
        self._add_accumulator(_STEP, held, dtype=paddle.int64, shape=[1])

    def _update(
        self,
        parameter: Tensor,
        weight: Tensor,
        gradient: Tensor,
        lr: Tensor,
        options: Mapping[str, float],
    ) -> None:
        betas = options["beta1"], options["beta2"]
        (step,) = self._state_of(parameter, _STEP)
        step.add_(paddle.ones_like(step))
        phase = phase_of(
            step, self._reset_interval, self._warmup_steps, self._clip_start
        )
        state = self._adam_state(parameter)
        # Not by a product: the second moment may be infinite.
        moments = [
            paddle.where(
                phase.resets.reshape([]), paddle.zeros_like(moment), moment
            )
            for moment in (state.moment1, state.moment2)
        ]
        state = state._replace(moment1=moments[0], moment2=moments[1])
        clipped = clip_spikes(gradient, state.moment2, options["threshold"])
        clips = phase.clips.reshape([])
        gradient = paddle.where(clips, clipped, gradient)
        state = next_moments(gradient, state, *betas)
        direction = adam_direction(state, options["epsilon"])
        scale = phase.scale.astype(weight.dtype).reshape([])
        decayed = weight * (1 - lr * options["weight_decay"])
        assign_(weight, decayed - lr * scale * direction)
        self._set_adam_state(parameter, advance_powers(state, *betas))
