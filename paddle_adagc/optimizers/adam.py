# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Adam's moments and direction, and their accumulators.

The accumulators carry the names that ``paddle.optimizer.AdamW`` gives them:
an optimizer with no other state and AdamW load each other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from paddle import Tensor, _C_ops

from paddle_adagc.optimizers.base import DecoupledOptimizer, assign_

_NAMES = ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")


class AdamState(NamedTuple):
    """Adam's state of one tensor."""

    moment1: Tensor
    """Moving average of the gradient, of the weight's shape."""

    moment2: Tensor
    """Moving average of its square."""

    beta1_power: Tensor
    """``beta1 ** t`` of the coming step ``t``, counted from 1; ``[1]``."""

    beta2_power: Tensor
    """``beta2 ** t``; ``[1]``."""


def square_root(x: Tensor) -> Tensor:
    """Square root; on CPUs correctly rounded, as :func:`.rule.square_root`."""
    if not x.place.is_cpu_place():
        return x.sqrt()
    return x.astype("float64").sqrt().astype(x.dtype)


def next_moments(
    gradient: Tensor, state: AdamState, beta1: float, beta2: float
) -> AdamState:
    """Return the state with this step's gradient in its moments.

    The powers stay this step's; :func:`advance_powers` ends the step.
    """
    return state._replace(
        moment1=beta1 * state.moment1 + (1 - beta1) * gradient,
        moment2=beta2 * state.moment2 + (1 - beta2) * gradient.square(),
    )


def corrected_moments(state: AdamState) -> tuple[Tensor, Tensor]:
    """Both moments without their bias towards 0."""
    return (
        state.moment1 / (1 - state.beta1_power.reshape([])),
        state.moment2 / (1 - state.beta2_power.reshape([])),
    )


def adam_direction(state: AdamState, epsilon: float) -> Tensor:
    """Adam's update before the learning rate (Kingma and Ba 2015).

    Args:
        state: With this step's gradient in its moments.
        epsilon: Added to the square root of the second moment.
    """
    mean, square = corrected_moments(state)
    return mean / (square_root(square) + epsilon)


def advance_powers(state: AdamState, beta1: float, beta2: float) -> AdamState:
    """Return the state with the powers of the next step."""
    return state._replace(
        beta1_power=state.beta1_power * beta1,
        beta2_power=state.beta2_power * beta2,
    )


def adamw_step_(
    weight: Tensor,
    gradient: Tensor,
    lr: Tensor,
    state: AdamState,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> None:
    """One step of AdamW in place, by the operator of Paddle's own AdamW.

    Args:
        weight: float32 or float64; likewise the gradient and the state.
        gradient: Same shape as the weight.
        lr: Learning rate, ``[]``.
        state: Moments of the weight.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the square root of the second moment.
        weight_decay: Decoupled weight decay.
    """
    rows_per_thread = 1000
    _C_ops.adamw_(
        weight,
        gradient,
        lr,
        state.moment1,
        state.moment2,
        None,  # AMSGrad's maximum
        state.beta1_power,
        state.beta2_power,
        None,  # master weight
        None,  # found_inf
        beta1,
        beta2,
        epsilon,
        1.0,  # lr_ratio
        weight_decay,
        True,  # with_decay
        False,  # lazy_mode
        rows_per_thread,
        False,  # multi_precision
        False,  # use_global_beta_pow
        False,  # amsgrad
    )


class AdamOptimizer(DecoupledOptimizer):
    """An optimizer with Adam's state for some or all of its parameters."""

    def _add_state(
        self,
        parameter: Tensor,
        held: Tensor,
        dtype: Any,
        options: Mapping[str, float],
    ) -> None:
        self._add_adam_state(held, dtype, options["beta1"], options["beta2"])

    def _add_adam_state(
        self, held: Tensor, dtype: Any, beta1: float, beta2: float
    ) -> None:
        for name, start in zip(_NAMES, (0.0, 0.0, beta1, beta2), strict=True):
            self._add_accumulator(
                name,
                held,
                dtype=dtype,
                fill_value=start,
                shape=[1] if name.endswith("pow_acc") else None,
            )

    def _adam_state(self, parameter: Tensor) -> AdamState:
        return AdamState(*self._state_of(parameter, *_NAMES))

    def _set_adam_state(self, parameter: Tensor, state: AdamState) -> None:
        for held, value in zip(self._adam_state(parameter), state, strict=True):
            if held is not value:
                assign_(held, value)
