# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts: top-k routing without capacity."""

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from paddle import Tensor, nn

from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.fp8 import without_autocast
from adagc_lab.models.layers import (
    GatedMLP,
    as_float32,
    create_alpha,
    weight_initializer,
)
from paddle_adagc.parallel.topology import read_topology

# Smallest divisor of the top-k weights (ERNIE-4.5's moe_norm_min).
_NORM_MIN = 1e-12


def load_balancing_loss(probabilities: Tensor, counts: Tensor) -> Tensor:
    """`E * sum_e f_e P_e` (Fedus et al. 2022, equation 4).

    f_e is the share of all assignments that expert e got, by `counts` [E], P_e
    its mean of the `probabilities` [tokens, E]: 1 where both are even, E where
    one expert gets all. Hugging Face's Mixtral and ERNIE losses divide by
    tokens instead of assignments: they are `moe_top_k` times as large.
    """
    load = counts.astype("float32") / counts.sum().astype("float32")
    mean = probabilities.mean(axis=0)
    return probabilities.shape[-1] * (load * mean).sum()


class Router(nn.Layer):
    """Chooses experts by a softmax over a linear map, all in float32."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.weight = self.create_parameter(
            [config.hidden_size, config.moe_num_experts],
            default_initializer=weight_initializer(config, "input"),
        )
        self.alpha: Tensor | None = None
        if config.initialization == "wesar":
            self.alpha = create_alpha(self, config, "input")
        self.top_k = config.moe_top_k

    def forward(
        self, x: Tensor, correction_bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map [tokens, hidden] to probabilities, [tokens, E] float32.

        And the chosen experts' weights, [tokens, top_k] float32, and indices,
        int64. The bias [E] takes part in the choice only.
        """
        with without_autocast():
            logits = paddle.matmul(as_float32(x), as_float32(self.weight))
            if self.alpha is not None:
                logits = logits * as_float32(self.alpha)
        probabilities = F.softmax(logits)
        if correction_bias is None:
            weights, chosen = paddle.topk(probabilities, self.top_k)
        else:
            scores = probabilities.detach() + correction_bias
            _, chosen = paddle.topk(scores, self.top_k)
            weights = paddle.take_along_axis(probabilities, chosen, 1)
        total = weights.sum(-1, keepdim=True)
        weights = weights / paddle.clip(total, min=_NORM_MIN)
        return probabilities, weights, chosen


class MoE(nn.Layer):
    """Routed experts, each with its own tensors, and shared experts.

    Tokens are sorted by expert. An expert without tokens is not called, so its
    gradients stay None, or with several data-parallel or sharding ranks are
    zero: fleet wants gradients of the same tensors on every rank. The host
    reads the number of tokens of each expert once a layer and step. The load
    that balances the experts is that of all ranks' tokens.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width = config.moe_intermediate_size
        self.num_experts = config.moe_num_experts
        self.top_k = config.moe_top_k
        self.balances = config.router_aux_loss_coef > 0
        self.has_correction_bias = config.moe_correction_bias
        self.gate = Router(config)
        self.topology = read_topology()
        self.experts = nn.LayerList(
            GatedMLP(config, width, "experts") for _ in range(self.num_experts)
        )
        self.shared_experts: GatedMLP | None = None
        if num_shared := config.moe_num_shared_experts:
            self.shared_experts = GatedMLP(
                config, num_shared * width, "experts"
            )
        if self.has_correction_bias:
            zeros = paddle.zeros([self.num_experts], dtype="float32")
            self.register_buffer("e_score_correction_bias", zeros)
            # In bfloat16 a bias of 0.5 stays: steps of 0.001 are rounded away.
            self._cast_to_low_precision = False  # for paddle.amp.decorate
            self.register_buffer(
                "expert_load", zeros.astype("int64"), persistable=False
            )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mix the experts' outputs of [batch, length, hidden].

        Also gives the load-balancing loss without its factor, [1] float32,
        zero where the factor is zero.
        """
        tokens = x.reshape([-1, x.shape[-1]])
        bias = None
        if self.has_correction_bias:
            bias = as_float32(self.e_score_correction_bias)
        probabilities, weights, chosen = self.gate(tokens, bias)
        counts = paddle.bincount(
            chosen.reshape([-1]), minlength=self.num_experts
        )
        out = self._mix(tokens, weights, chosen, counts)
        if self.balances or self.has_correction_bias:
            counts = counts.clone()
            for axis in (self.topology.data, self.topology.sharding):
                if axis.size > 1:
                    dist.all_reduce(counts, group=axis.group)
        if self.has_correction_bias and self.training:
            self.expert_load.add_(counts)
        if self.shared_experts is not None:
            out = out + self.shared_experts(tokens)
        balance = paddle.zeros([1], dtype="float32")
        if self.balances:
            balance = load_balancing_loss(probabilities, counts).reshape([1])
        return out.reshape(x.shape), balance

    def _mix(
        self, tokens: Tensor, weights: Tensor, chosen: Tensor, counts: Tensor
    ) -> Tensor:
        """Sum the chosen experts by weight, [tokens, hidden]."""
        order = paddle.argsort(chosen.reshape([-1]), stable=True)
        rows = paddle.gather(tokens, order // self.top_k)
        outputs = self._call_experts(rows, counts.tolist())
        restored = paddle.gather(outputs, paddle.argsort(order)).reshape(
            [-1, self.top_k, tokens.shape[-1]]
        )
        weights = weights.astype(restored.dtype).unsqueeze(-1)
        return (restored * weights).sum(axis=1)

    def _call_experts(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Pass rows, grouped by expert, through the experts."""
        parts = paddle.split(rows, counts)
        calls_idle = max(self.topology.data.size, self.topology.sharding.size)
        outputs = []
        for expert, part in zip(self.experts, parts, strict=True):
            if part.shape[0]:
                outputs.append(expert(part))
            elif calls_idle > 1:
                # On one row of zeros: not every kernel takes empty tensors.
                zeros = paddle.zeros([1, part.shape[-1]], part.dtype)
                outputs.append(expert(paddle.concat([part, zeros]))[:0])
        return paddle.concat(outputs)


def _balanced_layers(model: nn.Layer) -> list[MoE]:
    layers = model.sublayers(include_self=True)
    return [x for x in layers if isinstance(x, MoE) and x.has_correction_bias]


def adjust_correction_biases(model: nn.Layer, rate: float) -> None:
    """Raise the biases of experts with fewer tokens than the mean.

    `bias += rate * sign(mean load - load)` over the tokens routed in training
    since the last call (Wang et al. 2024, algorithm 1), to be called after an
    optimizer step. The rate is in units of probability.
    """
    for layer in _balanced_layers(model):
        load = layer.expert_load.astype("float32")
        step = rate * paddle.sign(load.mean() - load)
        bias = layer.e_score_correction_bias
        bias.add_(step.astype(bias.dtype))
        layer.expert_load.zero_()


def expert_balance(model: nn.Layer) -> dict[str, float]:
    """How evenly tokens went to the experts since the biases' last change.

    ``expert_max_violation`` is the busiest expert's tokens above the mean, as a
    share of the mean, in the worst layer (MaxVio of Wang et al. 2024);
    ``idle_experts`` counts those without a token. Empty where no token was
    counted, as without `moe_correction_bias`. Waits for the device.
    """
    loads = [layer.expert_load.numpy() for layer in _balanced_layers(model)]
    if not np.any(loads):
        return {}
    load = np.stack(loads)
    return {
        "expert_max_violation": float((load.max(1) / load.mean(1)).max() - 1),
        "idle_experts": int(np.count_nonzero(load == 0)),
    }
