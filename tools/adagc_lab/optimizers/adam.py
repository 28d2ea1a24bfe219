# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What optimizers with Adam's state share."""

from __future__ import annotations

from collections.abc import Sequence

import paddle
import paddle.distributed as dist
from paddle import Tensor

from paddle_adagc.optimizers import base


class AdamLike(base.DecoupledOptimizer):
    """An optimizer with Adam's accumulators, by the names of Paddle's AdamW."""

    def _start(self, parameter: Tensor, options: base.Options) -> base.Start:
        return base.adam_start(options["beta1"], options["beta2"])


def adam_update(step: base.Step, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Put a gradient into Adam's state.

    Returns Adam's update before the learning rate, and the second moment
    without bias to 0.
    """
    means = []
    for i, value in ((1, gradient), (2, gradient.square())):
        beta, moment = step.options[f"beta{i}"], step.state[f"moment{i}"]
        power = step.state[f"beta{i}_pow_acc"]
        paddle.assign(beta * moment + (1 - beta) * value, moment)
        means.append(moment / (1 - power.reshape([])))
        paddle.assign(power * beta, power)
    mean, square = means
    return mean / (square_root(square) + step.options["epsilon"]), square


def square_root(x: Tensor) -> Tensor:
    """Square root; on CPUs correctly rounded, as the clips' own."""
    if not x.place.is_cpu_place():
        return x.sqrt()
    return x.astype("float64").sqrt().astype(x.dtype)


class Parts(base.Parts):
    """Reductions over the whole tensor, which keep all axes.

    By one all-reduce where tensor parallelism splits it.
    """

    def sum(self, values: Tensor, axes: Sequence[int]) -> Tensor:
        """Sum of the whole tensor along ``axes``."""
        # Paddle takes no axes for all of them.
        total = values.sum(list(axes), keepdim=True) if axes else values
        if self.split_axis in axes:
            dist.all_reduce(total, dist.ReduceOp.SUM, self.ranks.group)
        return total

    def mean(self, values: Tensor) -> Tensor:
        """Mean of the whole tensor."""
        num_elements = values.size * self.ranks.size
        return self.sum(values, range(values.ndim)) / num_elements

    def max(self, values: Tensor) -> Tensor:
        """Largest value of the whole tensor."""
        largest = values.max([*range(values.ndim)], keepdim=True)
        if self.split_axis >= 0:
            dist.all_reduce(largest, dist.ReduceOp.MAX, self.ranks.group)
        return largest
