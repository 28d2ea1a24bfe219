# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Routed experts on one or many ranks: top-k routing without capacity."""

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from core.parallel.sizes import HIDDEN, OF_EXPERTS
from paddle import nn
from paddle.autograd import PyLayer
from paddle.distributed import fleet
from paddle.distributed.fleet.utils.sequence_parallel_utils import (
    GatherOp,
    ScatterOp,
)

from paddle_adagc.parallel.topology import read_topology


def mark_experts(experts):
    """Mark parameters as fleet's sharding V2 and the clip expect of experts."""
    hcg = fleet.get_hybrid_communicate_group()
    group = hcg.get_moe_sharding_parallel_group()
    for parameter in experts.parameters():
        parameter.color = {"color": "moe_expert", "group": group}
        parameter.expert = True
        parameter.no_sync = True


def exchange(rows, num_sent, num_received, axis):
    out = paddle.empty([sum(num_received), *rows.shape[1:]], rows.dtype)
    dist.alltoall_single(
        out, rows.contiguous(), num_sent, num_received, group=axis.group
    )
    return out


class AllToAll(PyLayer):
    """Rows to other ranks; their gradients come back times a factor."""

    @staticmethod
    def forward(ctx, rows, num_sent, num_received, axis, factor):
        ctx.back, ctx.factor = (num_received, num_sent, axis), factor
        return exchange(rows, num_sent, num_received, axis)

    @staticmethod
    def backward(ctx, grad):
        return exchange(grad, *ctx.back) * ctx.factor


class Dispatch:
    """The way of rows, grouped by expert, to the experts' ranks and back.

    Fleet averages dense gradients over the ranks that read other data; an
    expert's is a sum over them. So gradients are divided by their number on the
    way into the experts, and multiplied on the way out.
    """

    def __init__(self, counts, axis, num_data_ranks):
        self.axis, self.factor = axis, float(num_data_ranks)
        by_rank = counts.reshape([axis.size, -1])
        received = paddle.empty_like(by_rank)
        dist.alltoall_single(received, by_rank, group=axis.group)
        table = received.numpy()
        self.sent = by_rank.sum(axis=1).tolist()
        self.received = table.sum(axis=1).tolist()
        self.num_rows = table.sum(axis=0).tolist()  # of each own expert
        experts = np.tile(np.arange(table.shape[1]), len(table))
        order = np.argsort(np.repeat(experts, table.ravel()), kind="stable")
        self.order = paddle.to_tensor(order, "int64")

    def send(self, rows):
        numbers = self.sent, self.received, self.axis
        received = AllToAll.apply(rows, *numbers, self.factor)
        return paddle.gather(received, self.order)

    def send_back(self, rows):
        rows = paddle.gather(rows, paddle.argsort(self.order))
        numbers = self.received, self.sent, self.axis
        return AllToAll.apply(rows, *numbers, 1.0 / self.factor)


class Router(nn.Layer):
    def __init__(self, num_experts, top_k):
        super().__init__()
        self.weight = self.create_parameter([HIDDEN, num_experts])
        self.top_k = top_k

    def forward(self, x):
        """Probabilities, the chosen experts' weights and indices."""
        probabilities = F.softmax(x @ self.weight)
        weights, chosen = paddle.topk(probabilities, self.top_k)
        return probabilities, weights / weights.sum(-1, keepdim=True), chosen


class MoE(nn.Layer):
    """Experts with their own tensors, and shared ones.

    Under expert parallelism this rank holds some, whole, and the rest of
    ``experts`` is None. An expert without tokens is not called on one process;
    on several data ranks it is, for fleet wants the same gradients everywhere.
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
        """Mix [batch, length, hidden]; also the balancing loss, [1]."""
        tokens = x.reshape([-1, x.shape[-1]])
        probabilities, weights, chosen = self.gate(tokens)
        counts = self.count(chosen)
        if min(self.topology.expert.size, self.topology.model.size) == 1:
            out = self.mix(tokens, weights, chosen, counts)
        else:  # each tensor-parallel rank sends its share of the tokens
            parts = [ScatterOp.apply(y) for y in (tokens, weights, chosen)]
            out = GatherOp.apply(self.mix(*parts, self.count(parts[2])))
        counts = counts.clone()
        for axis in (self.topology.data, self.topology.sharding):
            if axis.size > 1:
                dist.all_reduce(counts, group=axis.group)
        out = out + self.shared_experts(tokens)
        load = counts.astype("float32") / counts.sum().astype("float32")
        balance = (load * probabilities.mean(axis=0)).sum() * self.num_experts
        return out.reshape(x.shape), balance.reshape([1])

    def count(self, chosen):
        return paddle.bincount(chosen.reshape([-1]), minlength=self.num_experts)

    def mix(self, tokens, weights, chosen, counts):
        order = paddle.argsort(chosen.reshape([-1]), stable=True)
        rows = paddle.gather(tokens, order // self.top_k)
        axis = self.topology.expert
        if axis.size == 1:
            outputs = self.call(rows, counts.tolist())
        else:
            data_ranks = axis.size // self.topology.model.size
            way = Dispatch(counts, axis, data_ranks)
            outputs = way.send_back(self.call(way.send(rows), way.num_rows))
        outputs = paddle.gather(outputs, paddle.argsort(order))
        outputs = outputs.reshape([-1, self.top_k, tokens.shape[-1]])
        return (outputs * weights.unsqueeze(-1)).sum(axis=1)

    def call(self, rows, counts):
        experts = [expert for expert in self.experts if expert is not None]
        calls_idle = max(self.topology.data.size, self.topology.sharding.size)
        outputs = []
        for expert, part in zip(
            experts, paddle.split(rows, counts), strict=True
        ):
            if part.shape[0]:
                outputs.append(expert(part))
            elif calls_idle > 1:  # on a row of zeros: kernels want one
                zeros = paddle.zeros([1, part.shape[-1]])
                outputs.append(expert(paddle.concat([part, zeros]))[:0])
        return paddle.concat(outputs)
