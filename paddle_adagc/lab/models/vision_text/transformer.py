# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The pre-norm transformer that both towers of CLIP are made of."""

from functools import lru_cache

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from paddle_adagc.lab.models.attention import (
    causal_mask,
    gather_rows,
    token_major_rows,
)
from paddle_adagc.lab.models.layers import runs_on_cpu


def normal(std: float) -> paddle.ParamAttr:
    """Attributes of a weight drawn from N(0, std^2)."""
    return paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, std))


def quick_gelu(x: Tensor) -> Tensor:
    """CLIP's approximation of GELU, `x * sigmoid(1.702 x)`."""
    return x * F.sigmoid(1.702 * x)


class SelfAttention(nn.Layer):
    """Multi-head attention with one projection for query, key and value.

    They are one weight, as in CLIP and OpenCLIP, so a per-tensor clip has one
    norm for all three.
    """

    def __init__(
        self, width: int, heads: int, num_layers: int, causal: bool
    ) -> None:
        super().__init__()
        std = width**-0.5
        self.in_proj = nn.Linear(width, 3 * width, normal(std))
        self.out_proj = nn.Linear(
            width, width, normal(std * (2 * num_layers) ** -0.5)
        )
        self.heads = heads
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, length, width] to the same shape."""
        attend = _attend_folded if runs_on_cpu(x) else _attend_batched
        mixed = attend(self.in_proj(x), self.heads, self.causal)
        return self.out_proj(mixed.reshape(x.shape))


def _attend_batched(projected: Tensor, heads: int, causal: bool) -> Tensor:
    """Attention of [batch, length, 3 * width] (the path of GPUs).

    Returns:
        [batch, length, heads, head_dim].
    """
    batch, length, _ = projected.shape
    parts = projected.reshape([batch, length, 3, heads, -1])
    return F.scaled_dot_product_attention(
        *paddle.unbind(parts, axis=2), is_causal=causal
    )


def _attend_folded(projected: Tensor, heads: int, causal: bool) -> Tensor:
    """`_attend_batched` for CPUs, where transpositions cost the most.

    The heads become part of the batch by gathers of rows, as in
    `models.attention.attend_folded`.
    """
    batch, length, width = projected.shape
    rows = projected.reshape([-1, width // (3 * heads)])
    folded = [batch * heads, length, 1, rows.shape[-1]]
    mixed = F.scaled_dot_product_attention(
        *(
            gather_rows(rows, order).reshape(folded)
            for order in _folded_rows(batch, length, heads)
        ),
        attn_mask=causal_mask(length, projected.dtype) if causal else None,
    )
    back = token_major_rows(batch, length, heads)
    return gather_rows(mixed, back).reshape([batch, length, heads, -1])


@lru_cache(maxsize=8)
def _folded_rows(batch: int, length: int, heads: int) -> list[Tensor]:
    """Rows of [batch, length, 3, heads] in the order [batch, head, length]."""
    rows = np.arange(batch * length * 3 * heads, dtype=np.int64)
    rows = rows.reshape(batch, length, 3, heads).transpose(2, 0, 3, 1)
    return [paddle.to_tensor(part.ravel(), place="cpu") for part in rows]


class FeedForward(nn.Layer):
    """Two linear maps with an activation between them."""

    def __init__(
        self, width: int, ratio: int, num_layers: int, activation: str
    ) -> None:
        super().__init__()
        hidden = ratio * width
        self.c_fc = nn.Linear(width, hidden, normal((2 * width) ** -0.5))
        self.c_proj = nn.Linear(
            hidden, width, normal(width**-0.5 * (2 * num_layers) ** -0.5)
        )
        self.activation = quick_gelu if activation == "quick_gelu" else F.gelu

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to the same shape."""
        return self.c_proj(self.activation(self.c_fc(x)))


class Block(nn.Layer):
    """Attention and feed-forward network, each behind a norm."""

    def __init__(
        self,
        width: int,
        heads: int,
        num_layers: int,
        ratio: int,
        activation: str,
        causal: bool,
        eps: float,
    ) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, epsilon=eps)
        self.attn = SelfAttention(width, heads, num_layers, causal)
        self.ln_2 = nn.LayerNorm(width, epsilon=eps)
        self.mlp = FeedForward(width, ratio, num_layers, activation)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, length, width] to the same shape."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))
