# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rotary position embeddings (Su et al. 2021), both layouts."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import paddle
from paddle import Tensor

from paddle_adagc.lab.models.layers import as_float32


def rotary_angles(
    length: int, head_dim: int, theta: float, layout: str
) -> npt.NDArray[np.float64]:
    """Angle of every component at every position, [length, head_dim].

    Pair j turns by `position * theta^(-2j / head_dim)`.
    """
    pairs = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    angles = np.outer(np.arange(length), theta**-pairs)
    if layout == "half":
        return np.concatenate([angles, angles], axis=1)
    return np.repeat(angles, 2, axis=1)


def quarter_turn(head_dim: int, layout: str) -> npt.NDArray[np.float32]:
    """Matrix P that turns every pair by 90 degrees: x @ P = (-x_b, x_a)."""
    index = np.arange(head_dim)
    if layout == "half":
        first = index[: head_dim // 2]
        second = index[head_dim // 2 :]
    else:
        first, second = index[0::2], index[1::2]
    matrix = np.zeros((head_dim, head_dim), np.float32)
    matrix[second, first] = -1.0
    matrix[first, second] = 1.0
    return matrix


def turn_pairs(x: Tensor, layout: str) -> Tensor:
    """`x @ quarter_turn(...)` without the product."""
    if layout == "half":
        first, second = paddle.chunk(x, 2, axis=-1)
        return paddle.concat([-second, first], axis=-1)
    pairs = x.reshape([*x.shape[:-1], x.shape[-1] // 2, 2])
    first, second = paddle.unbind(pairs, axis=-1)
    return paddle.stack([-second, first], axis=-1).reshape(x.shape)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Rotate heads by their positions, in float32.

    Args:
        x: [batch, length, heads, head_dim], any floating dtype; the result
            has the same.
        cos: Cosines of `rotary_angles`, [length, 1, head_dim], float32.
        sin: Sines likewise.
        layout: "half" or "interleaved".
    """
    wide = as_float32(x)
    turned = wide * cos + turn_pairs(wide, layout) * sin
    return turned if x.dtype == paddle.float32 else turned.astype(x.dtype)


def rotary_tables(
    length: int, head_dim: int, theta: float, layout: str
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `rotate`, kept between calls in eager mode."""
    make = _kept_tables if paddle.in_dynamic_mode() else _tables
    return make(length, head_dim, theta, layout, str(paddle.get_device()))


def _tables(
    length: int, head_dim: int, theta: float, layout: str, device: str
) -> tuple[Tensor, Tensor]:
    angles = rotary_angles(length, head_dim, theta, layout)[:, None]
    return (
        paddle.to_tensor(np.cos(angles), dtype="float32"),
        paddle.to_tensor(np.sin(angles), dtype="float32"),
    )


_kept_tables = lru_cache(maxsize=8)(_tables)
