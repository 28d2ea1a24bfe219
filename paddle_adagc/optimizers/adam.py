# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Adam's moments and direction, and their accumulators.

The accumulators carry the names that ``paddle.optimizer.AdamW`` gives them:
an optimizer with no other state and AdamW load each other's.
"""

from __future__ import annotations

from paddle import Tensor

from paddle_adagc.optimizers.base import (
    DecoupledOptimizer,
    Options,
    Step,
    assign_,
)

ADAM_STATE = ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")
"""Moving averages of the gradient and of its square, of the weight's shape; and
each beta ** t of the coming step t, from 1, ``[1]``."""


def square_root(x: Tensor) -> Tensor:
    """Square root; on CPUs correctly rounded, as :func:`.rule.square_root`."""
    if not x.place.is_cpu_place():
        return x.sqrt()
    return x.astype("float64").sqrt().astype(x.dtype)


def adam_direction(mean: Tensor, square: Tensor, epsilon: float) -> Tensor:
    """Adam's update before the learning rate, from moments without bias."""
    return mean / (square_root(square) + epsilon)


class AdamOptimizer(DecoupledOptimizer):
    """Adam's state for some or all parameters (Kingma and Ba 2015)."""

    def _add_state(
        self, parameter: Tensor, held: Tensor, options: Options
    ) -> None:
        self._add_adam_state(held, options["beta1"], options["beta2"])

    def _add_adam_state(self, held: Tensor, beta1: float, beta2: float) -> None:
        self._add(held, "moment1")
        self._add(held, "moment2")
        self._add(held, "beta1_pow_acc", beta1, [1])
        self._add(held, "beta2_pow_acc", beta2, [1])

    def _moments(self, step: Step, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Put a gradient into the state; return both moments without bias."""
        state = self._state_of(step.parameter, *ADAM_STATE)
        moment1, moment2, power1, power2 = state
        beta1, beta2 = step.options["beta1"], step.options["beta2"]
        return (
            _advance(moment1, power1, beta1, gradient),
            _advance(moment2, power2, beta2, gradient.square()),
        )


def _advance(
    moment: Tensor, power: Tensor, beta: float, value: Tensor
) -> Tensor:
    """Put a value into a moving average; return that without its bias to 0."""
    assign_(moment, beta * moment + (1 - beta) * value)
    unbiased = moment / (1 - power.reshape([]))
    assign_(power, power * beta)
    return unbiased
