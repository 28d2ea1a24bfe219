# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Grouped-query attention with rotary positions (Su et al. 2021)."""

import functools
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.fp8 import without_autocast
from adagc_lab.models.layers import (
    RMSNorm,
    as_float32,
    linear,
    runs_on_cpu,
)


class Rotary(NamedTuple):
    """Rotation of the pairs of components by their positions."""

    theta: float
    layout: str  # "half" or "interleaved", see `DecoderOptions.rope_layout`

    def angles(self, length: int, head_dim: int) -> npt.NDArray[np.float64]:
        """Angle of every component at every position, [length, head_dim].

        Pair j turns by `position * theta^(-2j / head_dim)`.
        """
        pairs = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
        angles = np.outer(np.arange(length), self.theta**-pairs)
        if self.layout == "half":
            return np.concatenate([angles, angles], axis=1)
        return np.repeat(angles, 2, axis=1)

    def turn_pairs(self, x: Tensor) -> Tensor:
        """Turn every pair of the last axis by 90 degrees: (-x_b, x_a)."""
        if self.layout == "half":
            first, second = paddle.chunk(x, 2, axis=-1)
            return paddle.concat([-second, first], axis=-1)
        pairs = x.reshape([*x.shape[:-1], x.shape[-1] // 2, 2])
        first, second = paddle.unbind(pairs, axis=-1)
        return paddle.stack([-second, first], axis=-1).reshape(x.shape)


class Attention(nn.Layer):
    """Causal self-attention with rotary positions and grouped queries."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        keys = config.num_key_value_heads * head_dim
        queries = config.num_attention_heads * head_dim
        make = functools.partial(linear, config, kind="attention")
        self.q_proj = make(hidden, queries, "columns")
        self.k_proj = make(hidden, keys, "columns")
        self.v_proj = make(hidden, keys, "columns")
        self.o_proj = make(queries, hidden, "rows")
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm:
            self.q_norm = RMSNorm(config, head_dim)
            self.k_norm = RMSNorm(config, head_dim)
        self.head_dim = head_dim
        self.rotary = Rotary(float(config.rope_theta), config.rope_layout)

    def forward(self, x: Tensor) -> Tensor:
        query = self._heads(self.q_proj(x))
        key = self._heads(self.k_proj(x))
        value = self._heads(self.v_proj(x))
        batch, length, _, _ = query.shape
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        mixed = attend(query, key, value, self.rotary)
        return self.o_proj(mixed.reshape([batch, length, -1]))

    def _heads(self, x: Tensor) -> Tensor:
        """Projected positions as [batch, length, heads, head_dim]."""
        return x.reshape([x.shape[0], x.shape[1], -1, self.head_dim])


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rotary: Rotary | None = None,
    is_causal: bool = True,
) -> Tensor:
    """Rotate queries and keys, then scaled dot-product attention.

    Queries are [batch, length, heads, head_dim]; keys and values have the
    key-value heads.
    """
    if runs_on_cpu(query):
        return attend_folded(query, key, value, rotary, is_causal)
    if rotary is not None:
        device = str(paddle.get_device())
        cos, sin = _tables(query.shape[1], query.shape[-1], rotary, device)
        query = _rotate(query, cos, sin, rotary.turn_pairs)
        key = _rotate(key, cos, sin, rotary.turn_pairs)
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=is_causal
    )


def attend_folded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rotary: Rotary | None,
    is_causal: bool,
) -> Tensor:
    """Compute `attend` on CPUs, several times as fast.

    Paddle's CPU kernels for transposition and broadcasting cost more than the
    attention itself. So a gather of rows makes the heads part of the batch and
    repeats key and value heads, and the rotation works on tables of full size
    with a product by the matrix of `turn_pairs`.
    """
    batch, length, heads, head_dim = query.shape
    order = _rows(batch, length, heads)
    kv_order = _rows(batch, length, key.shape[2], heads // key.shape[2])
    query, key = _gather_rows(query, order), _gather_rows(key, kv_order)
    if rotary is not None:
        cos, sin, turn = _folded_tables(batch * heads, length, head_dim, rotary)
        query = _rotate(query, cos, sin, lambda x: paddle.matmul(x, turn))
        key = _rotate(key, cos, sin, lambda x: paddle.matmul(x, turn))
    folded = [batch * heads, length, 1, head_dim]
    mixed = F.scaled_dot_product_attention(
        query.reshape(folded),
        key.reshape(folded),
        _gather_rows(value, kv_order).reshape(folded),
        attn_mask=_causal_mask(length, query.dtype) if is_causal else None,
    )
    back = _rows(batch, heads, length)
    return _gather_rows(mixed, back).reshape([batch, length, heads, head_dim])


def _rotate(
    x: Tensor, cos: Tensor, sin: Tensor, turn: Callable[[Tensor], Tensor]
) -> Tensor:
    """Rotate heads by their positions, in float32; the dtype stays."""
    wide = as_float32(x)
    turned = wide * cos + turn(wide) * sin
    return turned if x.dtype == paddle.float32 else turned.astype(x.dtype)


@lru_cache(maxsize=8)
def _tables(
    length: int, head_dim: int, rotary: Rotary, device: str
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [length, 1, head_dim], float32."""
    angles = rotary.angles(length, head_dim)[:, None]
    return (
        paddle.to_tensor(np.cos(angles), dtype="float32"),
        paddle.to_tensor(np.sin(angles), dtype="float32"),
    )


@lru_cache(maxsize=8)
def _folded_tables(
    num_heads: int, length: int, head_dim: int, rotary: Rotary
) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines and sines of the rows of all heads; the matrix of the turn."""
    angles = np.tile(rotary.angles(length, head_dim), (num_heads, 1))
    with without_autocast():
        turn = rotary.turn_pairs(paddle.eye(head_dim, dtype="float32"))
    return (
        paddle.to_tensor(np.cos(angles), dtype="float32", place="cpu"),
        paddle.to_tensor(np.sin(angles), dtype="float32", place="cpu"),
        turn.cpu(),
    )


def _gather_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Gather vectors of `x` [..., width] by their indices, [rows, width]."""
    return paddle.gather(x.reshape([-1, x.shape[-1]]), rows)


@lru_cache(maxsize=8)
def _rows(batch: int, outer: int, inner: int, repeats: int = 1) -> Tensor:
    """Rows of [batch, outer, inner] in the order [batch, inner, outer]."""
    rows = np.arange(batch * outer * inner).reshape(batch, outer, inner)
    rows = rows.transpose(0, 2, 1).repeat(repeats, axis=1)
    return paddle.to_tensor(rows.reshape(-1), dtype="int64", place="cpu")


@lru_cache(maxsize=8)
def _causal_mask(length: int, dtype: paddle.dtype) -> Tensor:
    """[length, length]: 0 up to the diagonal, -inf above it."""
    mask = np.triu(np.full((length, length), -np.inf, np.float32), 1)
    return paddle.to_tensor(mask, place="cpu").astype(dtype)
