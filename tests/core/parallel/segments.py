# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention of ranks that each have some of the positions: fleet's sep and cp.

PaddleNLP's `ReshardLayer` is not used: it calls ``alltoall`` with the order of
arguments of Paddle 2.
"""

import paddle
import paddle.distributed as dist
from paddle.autograd import PyLayer
from paddle.distributed.fleet.base.topology import EPHybridCommunicateGroup


class Exchange(PyLayer):
    """Give every rank a part of one axis, for the whole of another."""

    @staticmethod
    def forward(ctx, x, group, split_axis, joined_axis):
        ctx.group, ctx.axes = group, (joined_axis, split_axis)
        return _exchange(x, group, split_axis, joined_axis)

    @staticmethod
    def backward(ctx, grad):
        return _exchange(grad, ctx.group, *ctx.axes)


def _exchange(x, group, split_axis, joined_axis):
    parts = [
        part.contiguous() for part in paddle.split(x, group.nranks, split_axis)
    ]
    received = [paddle.empty_like(part) for part in parts]
    dist.alltoall(received, parts, group=group)
    return paddle.concat(received, axis=joined_axis)


def sequence_group(topology):
    """Ranks that share a sequence, of fleet's topology."""
    if isinstance(topology, EPHybridCommunicateGroup):
        return topology.get_context_parallel_group()
    return topology.get_sep_parallel_group()


def over_whole_sequences(attend, group):
    """Let `attend` see all positions of some of the heads.

    Args:
        attend: Takes queries, keys and values, [batch, length, heads, width],
            and options; gives the same shape.
        group: Ranks that share a sequence.
    """

    def call(query, key, value, *options):
        heads = [Exchange.apply(x, group, 2, 1) for x in (query, key, value)]
        return Exchange.apply(attend(*heads, *options), group, 1, 2)

    return call
