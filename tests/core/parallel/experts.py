# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Routed experts on one or many ranks: top-k routing without capacity."""

import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from paddle import nn
from paddle.autograd import PyLayer
from paddle.distributed import fleet
from paddle.distributed.fleet.utils.sequence_parallel_utils import (
    GatherOp,
    ScatterOp,
)

from paddle_adagc.parallel.topology import read_topology

HIDDEN, OF_EXPERTS = 16, 8


def mark_experts(experts):
    """Mark parameters as fleet's sharding V2 and the clip expect of experts."""
    hcg = fleet.get_hybrid_communicate_group()
    group = hcg.get_moe_sharding_parallel_group()
    for parameter in experts.parameters():
        parameter.color = {"color": "moe_expert", "group": group}
        parameter.expert = True
        parameter.no_sync = True


def all_rows(rows, group):
    """Rows of all ranks of the group."""
    parts = []
    dist.all_gather(parts, rows.contiguous(), group=group)
    return paddle.concat(parts)


def sum_of_own(rows, group):
    """The sum over the group of what its ranks have for this rank's rows."""
    total = rows.clone()
    dist.all_reduce(total, group=group)
    return total.chunk(group.nranks)[group.rank]


class Exchange(PyLayer):
    """Rows to other ranks; their gradients come back times a factor."""

    @staticmethod
    def forward(ctx, rows, there, back, group, factor):
        ctx.way_back = back, group, factor
        return there(rows, group)

    @staticmethod
    def backward(ctx, grad):
        back, group, factor = ctx.way_back
        return back(grad, group) * factor


class Router(nn.Layer):
    def __init__(self, num_experts, top_k):
        super().__init__()
        self.weight = self.create_parameter([HIDDEN, num_experts])
        self.top_k = top_k

    def forward(self, x):
        """The chosen experts' weights and indices."""
        return paddle.topk(F.softmax(x @ self.weight), self.top_k)


class MoE(nn.Layer):
    """Experts with their own tensors, and shared ones.

    Under expert parallelism this rank holds some, whole, and the rest of
    ``experts`` is None. Each is called on all tokens; the share of those that
    are not routed to it is 0.
    """

    def __init__(self, options, make_mlp):
        super().__init__()
        self.num_experts, self.top_k = (
            options.moe_num_experts,
            options.moe_top_k,
        )
        self.gate = Router(self.num_experts, self.top_k)
        self.topology = read_topology()
        axis = self.topology.expert
        own = self.num_experts // axis.size

        def whole(inner, outer, split):
            return nn.Linear(inner, outer, bias_attr=False)

        how = (whole,) if axis.size > 1 else ()
        self.experts = nn.LayerList(
            make_mlp(OF_EXPERTS, *how) if i // own == axis.rank else None
            for i in range(self.num_experts)
        )
        if axis.size > 1:
            mark_experts(self.experts)
        self.shared_experts = make_mlp(OF_EXPERTS)

    def forward(self, x):
        """Mix [batch, length, hidden]."""
        tokens = x.reshape([-1, x.shape[-1]])
        weights, chosen = self.gate(tokens)
        if min(self.topology.expert.size, self.topology.model.size) == 1:
            out = self.mix(tokens, weights, chosen)
        else:  # each tensor-parallel rank sends its share of the tokens
            parts = [ScatterOp.apply(y) for y in (tokens, weights, chosen)]
            out = GatherOp.apply(self.mix(*parts))
        return (out + self.shared_experts(tokens)).reshape(x.shape)

    def mix(self, tokens, weights, chosen):
        """Sum what the chosen experts make of each token.

        Fleet averages dense gradients over the ranks that read other data; an
        expert's is a sum over them. So gradients are divided by their number on
        the way into the experts, and multiplied on the way out.
        """
        shares = F.one_hot(chosen, self.num_experts) * weights.unsqueeze(-1)
        shares, axis = shares.sum(1), self.topology.expert
        num_data_ranks = float(axis.size // self.topology.model.size)
        if axis.size > 1:
            way = all_rows, sum_of_own, axis.group, num_data_ranks
            tokens, shares = (Exchange.apply(x, *way) for x in (tokens, shares))
        mixed = sum(
            expert(tokens) * shares[:, i : i + 1]
            for i, expert in enumerate(self.experts)
            if expert is not None
        )
        if axis.size > 1:
            way = sum_of_own, all_rows, axis.group, 1.0 / num_data_ranks
            mixed = Exchange.apply(mixed, *way)
        return mixed
