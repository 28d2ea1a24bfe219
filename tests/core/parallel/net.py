# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small decoder that fleet spreads over ranks in every way the clip knows.

Tensor, pipeline and expert parallelism, a tied head, norms of heads,
routed and shared experts: what differs between layouts, and nothing else.
"""

import functools
from unittest import mock

import paddle
import paddle.nn.functional as F
from core.parallel.experts import MoE
from core.parallel.sizes import (
    BALANCE,
    HEAD,
    HEADS,
    HIDDEN,
    INNER,
    KEY_HEADS,
    VOCABULARY,
)
from paddle import nn
from paddle.distributed import fleet
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.meta_parallel import (
    ColumnParallelLinear,
    ParallelCrossEntropy,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from paddle.utils import unique_name

from paddle_adagc.parallel.topology import read_topology


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


def attend(query, key, value):
    """Causal attention of [batch, length, heads, width], each group's keys."""
    repeats = query.shape[2] // key.shape[2]
    key, value = (
        x.repeat_interleave(repeats, axis=2).transpose([0, 2, 1, 3])
        for x in (key, value)
    )
    query = query.transpose([0, 2, 1, 3]) * query.shape[-1] ** -0.5
    scores = query @ key.transpose([0, 1, 3, 2])
    mask = paddle.full(scores.shape[-2:], -1e9).triu(1)
    return (F.softmax(scores + mask) @ value).transpose([0, 2, 1, 3])


class Attention(nn.Layer):
    def __init__(self, options):
        super().__init__()
        self.q_proj = linear(HIDDEN, HEADS * HEAD, "columns")
        self.k_proj = linear(HIDDEN, KEY_HEADS * HEAD, "columns")
        self.v_proj = linear(HIDDEN, KEY_HEADS * HEAD, "columns")
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
        return self.o_proj(attend(query, key, value).flatten(2))


class Block(nn.Layer):
    """Attention and feed-forward network or experts, each behind a norm.

    It takes and gives hidden states, and the sum of the routers' losses.
    """

    def __init__(self, options):
        super().__init__()
        self.self_attn = Attention(options)
        self.is_moe = options.moe_num_experts > 0
        self.mlp = MoE(options, GatedMLP) if self.is_moe else GatedMLP(INNER)
        self.input_layernorm = Norm(HIDDEN)
        self.post_attention_layernorm = Norm(HIDDEN)

    def forward(self, flow):
        x, losses = flow
        x = x + self.self_attn(self.input_layernorm(x))
        mixed = self.mlp(self.post_attention_layernorm(x))
        if self.is_moe:
            mixed, loss = mixed
            losses = losses + loss
        return x + mixed, losses


def enter(layer, ids):
    """What the first block gets."""
    losses = paddle.zeros([1])
    losses.stop_gradient = False  # a pipeline sends gradients back
    return layer(ids), losses


def tied_logits(hidden, weight):
    return paddle.matmul(tensor_parallel(hidden), weight, transpose_y=True)


def loss_of(options, logits, losses, labels):
    """Mean cross-entropy and the routers' share of the loss."""
    logits, labels = logits.flatten(0, 1), labels.reshape([-1, 1])
    if read_topology().model.size > 1:
        entropy = ParallelCrossEntropy()(logits, labels)
    else:
        entropy = F.cross_entropy(logits, labels, reduction="none")
    share = losses.squeeze() / options.num_hidden_layers
    return entropy.mean() + BALANCE * share


class Body(nn.Layer):
    def __init__(self, options):
        super().__init__()
        self.options = options
        self.embed_tokens = embedding()
        self.layers = nn.LayerList(
            Block(options) for _ in range(options.num_hidden_layers)
        )
        self.norm = Norm(HIDDEN)

    def forward(self, ids):
        flow = enter(self.embed_tokens, ids)
        for layer in self.layers:
            flow = layer(flow)
        return self.norm(flow[0]), flow[1]


class Net(nn.Layer):
    """The net in one piece, or the share of a tensor-parallel rank."""

    def __init__(self, options):
        super().__init__()
        self.options, self.model = options, Body(options)
        self.is_tied = options.tie_word_embeddings
        if not self.is_tied:
            self.lm_head = linear(HIDDEN, VOCABULARY, "columns")

    def forward(self, ids, labels):
        hidden, losses = self.model(ids)
        if self.is_tied:
            logits = tied_logits(hidden, self.model.embed_tokens.weight)
        else:
            logits = self.lm_head(hidden)
        return loss_of(self.options, logits, losses, labels), logits


@functools.cache
def whole_keys(options):
    """Names of all tensors of the whole net, sorted."""
    with (
        paddle.LazyGuard(),
        unique_name.guard(),
        mock.patch.object(fleet.fleet, "_hcg", None, create=True),
    ):
        return sorted(name for name, _ in Net(options).named_parameters())
