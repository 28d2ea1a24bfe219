# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rules over whole tensors, where ranks hold parts of them.

Tensor parallelism splits a tensor along its ``split_axis``: what a rule
reduces over that axis is reduced over the ``mp`` group as well, in one
all-reduce, and what it needs whole is gathered. Owner-based sharding (V1, stage
2) leaves tensors whole; slices (V2, stage 3) and buffers that join tensors are
refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle
import paddle.distributed as dist
from paddle import Tensor

from paddle_adagc.parallel.layout import refuse_stage_3, split_axis_of
from paddle_adagc.parallel.topology import Axis, read_topology


def check_whole_tensors(what: str, names: Sequence[str] = ()) -> None:
    """Refuse sharding that gives an optimizer parts of tensors.

    Args:
        what: The optimizer, for the message.
        names: Names of its parameters.

    Raises:
        ValueError: Sharding splits tensors, or joins them.
    """
    topology = read_topology()
    if topology is not None and topology.sharding.size > 1:
        if topology.splits_parameters:
            raise ValueError(
                f"{what} needs whole tensors, and sharding V2 splits them: "
                "set sharding_configs.split_param to False (V1)"
            )
        if topology.fuses_parameters:
            raise ValueError(
                f"{what} needs each tensor by itself, and "
                "sharding_configs.fuse_optimizer joins them: leave it or "
                "tensor_fusion out"
            )
    refuse_stage_3(what, names)


class Parts:
    """This rank's part of a tensor, and what the whole is made of.

    Args:
        parameter: A whole parameter, or under tensor parallelism
            (``is_distributed``) a part of one.

    Raises:
        ValueError: A part without a ``split_axis``.
    """

    def __init__(self, parameter: Tensor) -> None:
        self._axis = Axis()
        self._split_axis = -1
        if not getattr(parameter, "is_distributed", False):
            return
        topology = read_topology()
        if topology is None or topology.model.size == 1:
            return
        split_axis = split_axis_of(parameter)
        if split_axis is None:
            raise ValueError(
                f"{parameter.name} is split over tensor-parallel ranks, but "
                "nothing says along which axis: set its split_axis"
            )
        self._axis = topology.model
        self._split_axis = split_axis

    def sum(self, values: Tensor, axes: Sequence[int]) -> Tensor:
        """Sum over axes of the whole tensor, which stay with size 1."""
        # Paddle takes no axes for all of them.
        total = values.sum(list(axes), keepdim=True) if axes else values
        return self._over_ranks(total, axes, dist.ReduceOp.SUM)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of the whole tensor, with as many axes, all of size 1."""
        axes = range(values.ndim)
        num_elements = values.size * self._axis.size
        return self.sum(values, axes) / num_elements

    def max(self, values: Tensor) -> Tensor:
        """Largest element of the whole tensor; axes as for :meth:`mean`."""
        axes = range(values.ndim)
        largest = values.max(list(axes), keepdim=True)
        return self._over_ranks(largest, axes, dist.ReduceOp.MAX)

    def min(self, values: Tensor) -> Tensor:
        """Smallest element of the whole tensor; axes as for :meth:`mean`."""
        return -self.max(-values)

    def gather(self, part: Tensor) -> Tensor:
        """Return the whole tensor from the ranks' parts, in one all-gather."""
        if self._axis.size == 1:
            return part
        parts: list[Tensor] = []
        dist.all_gather(parts, part, group=self._axis.group)
        return paddle.concat(parts, axis=self._split_axis)

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor."""
        if self._axis.size == 1:
            return whole
        parts = paddle.split(whole, self._axis.size, axis=self._split_axis)
        return parts[self._axis.rank]

    def _over_ranks(
        self, value: Tensor, axes: Sequence[int], operation: int
    ) -> Tensor:
        if self._split_axis in axes:
            dist.all_reduce(value, op=operation, group=self._axis.group)
        return value
