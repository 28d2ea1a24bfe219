# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small decoder that fleet spreads over ranks in every way the clip knows.

Tensor, pipeline and expert parallelism, a tied head, norms of heads,
routed and shared experts: what differs between layouts, and nothing else.
"""

import paddle
import paddle.nn.functional as F
from core.parallel.experts import HIDDEN, MoE
from paddle import nn
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.meta_parallel import (
    ColumnParallelLinear,
    ParallelCrossEntropy,
    RowParallelLinear,
    VocabParallelEmbedding,
)

from paddle_adagc.parallel.topology import read_topology

VOCABULARY, INNER = 32, 24
HEADS, HEAD = 4, 8


def tensor_parallel(x):
    """``x``, whose gradient is the sum of those of the ranks' shares."""
    axis = read_topology().model
    return x if axis.size == 1 else mp_ops._c_identity(x, group=axis.group)


def linear(inner, outer, split):
    """Linear map without bias; ``split`` over the tensor-parallel ranks."""
    if read_topology().model.size == 1:
        return nn.Linear(inner, outer, bias_attr=False)
    if split == "columns":
        how = {"has_bias": False, "gather_output": False}
        return ColumnParallelLinear(inner, outer, **how)
    how = {"has_bias": False, "input_is_parallel": True}
    return RowParallelLinear(inner, outer, **how)


def embedding():
    is_split = read_topology().model.size > 1
    kind = VocabParallelEmbedding if is_split else nn.Embedding
    return kind(VOCABULARY, HIDDEN)


class Norm(nn.Layer):
    """RMSNorm; tensor-parallel ranks share that of heads."""

    def __init__(self, width, is_of_heads=False):
        super().__init__()
        one = nn.initializer.Constant(1.0)
        self.weight = self.create_parameter([width], default_initializer=one)
        self.is_of_heads = is_of_heads

    def forward(self, x):
        weight = self.weight
        if self.is_of_heads:
            weight = tensor_parallel(weight)
        mean = x.square().mean(-1, keepdim=True)
        return x * paddle.rsqrt(mean + 1e-5) * weight


class GatedMLP(nn.Layer):
    def __init__(self, width, make=linear):
        super().__init__()
        self.gate_proj = make(HIDDEN, width, "columns")
        self.up_proj = make(HIDDEN, width, "columns")
        self.down_proj = make(width, HIDDEN, "rows")

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Layer):
    def __init__(self, options):
        super().__init__()
        self.q_proj = linear(HIDDEN, HEADS * HEAD, "columns")
        self.k_proj = linear(HIDDEN, HEADS * HEAD, "columns")
        self.v_proj = linear(HIDDEN, HEADS * HEAD, "columns")
        self.o_proj = linear(HEADS * HEAD, HIDDEN, "rows")
        self.norms = options.qk_norm
        if self.norms:
            self.q_norm, self.k_norm = Norm(HEAD, True), Norm(HEAD, True)

    def forward(self, x):
        query, key, value = (
            project(x).reshape([*x.shape[:2], -1, HEAD])
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.norms:
            query, key = self.q_norm(query), self.k_norm(key)
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        return self.o_proj(mixed.flatten(2))


class Block(nn.Layer):
    """Attention and feed-forward network or experts, each behind a norm."""

    def __init__(self, options):
        super().__init__()
        self.self_attn = Attention(options)
        is_moe = options.moe_num_experts > 0
        self.mlp = MoE(options, GatedMLP) if is_moe else GatedMLP(INNER)
        self.input_layernorm = Norm(HIDDEN)
        self.post_attention_layernorm = Norm(HIDDEN)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


def tied_logits(hidden, weight):
    return paddle.matmul(tensor_parallel(hidden), weight, transpose_y=True)


def loss_of(logits, labels):
    """Mean cross-entropy."""
    logits, labels = logits.flatten(0, 1), labels.reshape([-1, 1])
    if read_topology().model.size > 1:
        return ParallelCrossEntropy()(logits, labels).mean()
    return F.cross_entropy(logits, labels)


class Body(nn.Layer):
    def __init__(self, options):
        super().__init__()
        self.embed_tokens = embedding()
        self.layers = nn.Sequential(
            *(Block(options) for _ in range(options.num_hidden_layers))
        )
        self.norm = Norm(HIDDEN)

    def forward(self, ids):
        return self.norm(self.layers(self.embed_tokens(ids)))


class Net(nn.Layer):
    """The net in one piece, or the share of a tensor-parallel rank."""

    def __init__(self, options):
        super().__init__()
        self.model = Body(options)
        self.is_tied = options.tie_word_embeddings
        if not self.is_tied:
            self.lm_head = linear(HIDDEN, VOCABULARY, "columns")

    def forward(self, ids, labels):
        hidden = self.model(ids)
        if self.is_tied:
            logits = tied_logits(hidden, self.model.embed_tokens.weight)
        else:
            logits = self.lm_head(hidden)
        return loss_of(logits, labels), logits
