# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm in float32, or in bfloat16: a numerical trigger of loss spikes."""

from functools import lru_cache

import paddle
from paddle import Tensor, nn

from paddle_adagc.lab.models.autocast import without_autocast
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.layers import (
    as_float32,
    enter_tensor_parallel,
    runs_on_cpu,
    tensor_parallel_degree,
    uses_sequence_parallel,
)


@lru_cache(maxsize=8)
def _averaging_column(width: int) -> Tensor:
    return paddle.full([width, 1], 1.0 / width, dtype="float32")


def _inverse_root(x: Tensor) -> Tensor:
    """`1 / sqrt(x)`; on CPUs by a power, the same on every processor.

    Paddle's float32 `rsqrt` starts there from an approximation that Intel and
    AMD compute differently.
    """
    return paddle.pow(x, -0.5) if runs_on_cpu(x) else paddle.rsqrt(x)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`weight * x / sqrt(mean(x^2) + eps)` over the last axis, in float32.

    On a CPU the mean and the scale are matrix products: Paddle's kernels for
    reduction and for broadcasting are several times slower there.

    Args:
        x: [..., width], any floating dtype; the result has the same.
        weight: [width].
        eps: Added to the mean square.
    """
    wide = as_float32(x)
    weight = as_float32(weight)
    if runs_on_cpu(x):
        mean = paddle.matmul(
            paddle.square(wide), _averaging_column(wide.shape[-1])
        )
        scale = paddle.matmul(_inverse_root(mean + eps), weight.unsqueeze(0))
        normed = wide * scale
    else:
        mean = paddle.square(wide).mean(-1, keepdim=True)
        normed = wide * paddle.rsqrt(mean + eps) * weight
    return normed if x.dtype == paddle.float32 else normed.astype(x.dtype)


def rms_norm_bfloat16(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`weight * x / sqrt(mean(x^2) + eps)`, every operation in bfloat16.

    Input, squares, their mean, its sum with `eps`, the reciprocal root, both
    products and the weight are bfloat16; sums over the last axis are float32
    inside, as in GPU kernels of reduction. So are their gradients.

    On a CPU, which lacks most bfloat16 kernels, float32 operations whose
    results (and whose gradients on the way back) are rounded to bfloat16 stand
    for them. There gradients that meet are summed before they are rounded.

    Args:
        x: [..., width], any floating dtype; the result has the same.
        weight: [width].
        eps: Added to the mean square.
    """
    with without_autocast():
        held, weight = _rounded(x), _rounded(weight)
        mean = _rounded(_rounded(paddle.square(held)).mean(-1, keepdim=True))
        scale = _rounded(_inverse_root(_rounded(mean + eps)))
        normed = _rounded(_rounded(held * scale) * weight)
        return normed.astype(x.dtype)


def _rounded(x: Tensor) -> Tensor:
    """`x` in bfloat16; on a CPU as float32."""
    low = x.astype("bfloat16")
    return low.astype("float32") if x.place.is_cpu_place() else low


class RMSNorm(nn.Layer):
    """Root-mean-square norm with a trained scale (Zhang and Sennrich 2019).

    Args:
        width: Length of the last axis.
        eps: Added to the mean square.
        of_split_input: The norm works on heads or positions that are split
            over the TP ranks, while its weight is the same on all: the
            weight's gradient is summed over them in every backward pass.
        precision: "float32", or "bfloat16" (see `rms_norm_bfloat16`).
    """

    def __init__(
        self,
        width: int,
        eps: float,
        of_split_input: bool = False,
        precision: str = "float32",
    ) -> None:
        super().__init__()
        self.compute = (
            rms_norm_bfloat16 if precision == "bfloat16" else rms_norm
        )
        self.is_shared = of_split_input and tensor_parallel_degree() > 1
        self.weight = self.create_parameter(
            [width], default_initializer=nn.initializer.Constant(1.0)
        )
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of `x`."""
        weight = self.weight
        if self.is_shared:
            weight = enter_tensor_parallel(weight)
        return self.compute(x, weight, self.eps)


def residual_norm(config: DecoderConfig) -> RMSNorm:
    """RMSNorm of the residual stream."""
    return RMSNorm(
        config.hidden_size,
        config.rms_norm_eps,
        uses_sequence_parallel(config),
        config.rms_norm_precision,
    )
