# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Experts spread over ranks: marks, all-to-all, and the load of all ranks."""

from collections.abc import Sequence
from typing import Any

import paddle
import paddle.distributed as dist
from paddle import Tensor, nn
from paddle.autograd import PyLayer
from paddle.distributed import fleet

from paddle_adagc.parallel.topology import Axis, Topology


def expert_rank(expert: int, num_experts: int, num_ranks: int) -> int:
    """Expert-parallel rank that holds the expert with this global index."""
    return expert // (num_experts // num_ranks)


def mark_experts(experts: nn.Layer) -> None:
    """Mark parameters as fleet's sharding V2 and the clip expect of experts.

    `color` makes sharding share their optimizer states over the moe_sharding
    group, `no_sync` keeps them out of the other groups' broadcasts.
    """
    groups = fleet.get_hybrid_communicate_group()
    group = groups.get_moe_sharding_parallel_group()
    for parameter in experts.parameters():
        parameter.color = {"color": "moe_expert", "group": group}
        parameter.expert = True
        parameter.no_sync = True


def sum_over_data_ranks(counts: Tensor, topology: Topology) -> Tensor:
    """Sum over the ranks that hold other tokens of the same batch.

    Args:
        counts: Integer, without gradient.
        topology: This rank's place.
    """
    for axis in (topology.data, topology.sharding):
        if axis.size > 1:
            dist.all_reduce(counts, group=axis.group)
    return counts


class AllToAll(PyLayer):
    """Send rows to other ranks; send back their gradients times a factor."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        num_sent: Sequence[int],
        num_received: Sequence[int],
        axis: Axis,
        gradient_factor: float,
    ) -> Tensor:
        """Exchange rows.

        Args:
            ctx: Context of the PyLayer.
            rows: [sum(num_sent), width], grouped by destination.
            num_sent: Rows for each rank of the group.
            num_received: Rows from each rank of the group.
            axis: The group.
            gradient_factor: Factor of the gradients.

        Returns:
            [sum(num_received), width], grouped by sender.
        """
        ctx.num_sent, ctx.num_received = [*num_sent], [*num_received]
        ctx.axis, ctx.gradient_factor = axis, gradient_factor
        return _exchange(rows, ctx.num_sent, ctx.num_received, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Send gradients of received rows back to their senders."""
        back = _exchange(grad, ctx.num_received, ctx.num_sent, ctx.axis)
        return back * ctx.gradient_factor


def _exchange(
    rows: Tensor, num_sent: list[int], num_received: list[int], axis: Axis
) -> Tensor:
    out = paddle.empty([sum(num_received), *rows.shape[1:]], rows.dtype)
    dist.alltoall_single(
        out, rows.contiguous(), num_sent, num_received, group=axis.group
    )
    return out


class Dispatch:
    """The way of a batch of token-expert assignments to the ranks and back.

    An expert's gradient is a sum over the ranks whose tokens it got, while
    fleet averages dense gradients over those of them that read other data. So
    gradients are divided by the number of these on their way into the experts,
    and multiplied by it on their way out.

    Args:
        counts: Rows that this rank has for each of all experts, [E] int64.
        axis: The expert group; each of its ranks holds `E / axis.size`
            consecutive experts.
        num_data_ranks: Ranks of the group that read different data: all but
            for tensor parallelism.

    Attributes:
        num_rows: Rows that each expert of this rank gets.
    """

    def __init__(self, counts: Tensor, axis: Axis, num_data_ranks: int) -> None:
        self._axis = axis
        self._num_data_ranks = float(num_data_ranks)
        by_rank = counts.reshape([axis.size, -1])
        received = paddle.empty_like(by_rank)
        dist.alltoall_single(received, by_rank, group=axis.group)
        table: list[list[int]] = received.tolist()
        self._num_sent: list[int] = by_rank.sum(axis=1).tolist()
        self._num_received = [sum(row) for row in table]
        self.num_rows = [sum(column) for column in zip(*table, strict=True)]
        self._order = paddle.to_tensor(_by_expert(table), "int64")

    def send(self, rows: Tensor) -> Tensor:
        """Send rows, grouped by expert, to the experts' ranks.

        Args:
            rows: [this rank's assignments, width], by expert.

        Returns:
            [sum(num_rows), width], grouped by this rank's experts.
        """
        received = AllToAll.apply(
            rows,
            self._num_sent,
            self._num_received,
            self._axis,
            self._num_data_ranks,
        )
        return paddle.gather(received, self._order)

    def send_back(self, rows: Tensor) -> Tensor:
        """Undo `send`, with the experts' outputs."""
        back = paddle.gather(rows, paddle.argsort(self._order))
        return AllToAll.apply(
            back,
            self._num_received,
            self._num_sent,
            self._axis,
            1.0 / self._num_data_ranks,
        )


def _by_expert(table: list[list[int]]) -> list[int]:
    """Return the order that regroups rows from senders to experts.

    Args:
        table: Rows from each sender for each expert.
    """
    starts: list[list[int]] = []
    position = 0
    for row in table:
        starts.append([])
        for count in row:
            starts[-1].append(position)
            position += count
    return [
        index
        for expert in range(len(table[0]))
        for sender, row in enumerate(table)
        for index in range(
            starts[sender][expert], starts[sender][expert] + row[expert]
        )
    ]
