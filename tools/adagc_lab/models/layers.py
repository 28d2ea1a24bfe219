# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Linear maps, embedding, RMSNorm, SwiGLU: plain, tensor-parallel or FP8.

Weight matrices W are drawn from a normal distribution around 0. With d the
hidden size and N the number of layers:

- "normal": the standard deviation is `initializer_range`.
- "scaled_embed" (Takase et al. 2023, arXiv 2312.16903): it is sqrt(2 / (5d)),
  and sqrt(1 / (2N)) times this for the outputs of attention and feed-forward
  networks. The embedding's output is multiplied by sqrt(d); a tied head
  multiplies by W without that.
- "wesar" (Nishida et al. 2024, arXiv 2410.05052): it is sqrt(4e-5), and alpha
  W takes the place of W, with a trained scalar alpha for every matrix.
"""

import math
from functools import lru_cache
from typing import Literal

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.meta_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)

from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.fp8 import Float8Linear, without_autocast
from paddle_adagc.parallel.topology import read_topology

Role = Literal["embedding", "input", "attention_output", "mlp_output"]
"""Task of a matrix; "input" is any that reads the residual stream."""

_WESAR_DEVIATION = math.sqrt(4e-5)


def weight_initializer(
    config: DecoderConfig, role: Role
) -> nn.initializer.Initializer:
    deviation = config.initializer_range
    if config.initialization == "wesar":
        deviation = _WESAR_DEVIATION
    elif config.initialization == "scaled_embed":
        deviation = math.sqrt(2 / (5 * config.hidden_size))
        if role in ("attention_output", "mlp_output"):
            deviation *= math.sqrt(1 / (2 * config.num_hidden_layers))
    return nn.initializer.Normal(0.0, deviation)


def create_alpha(layer: nn.Layer, config: DecoderConfig, role: Role) -> Tensor:
    """WeSaR's scale of a matrix, [1], for the layer's attribute `alpha`.

    Routers, which that paper does not have, start as other inputs.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    target = {  # standard deviation of alpha W at the start
        "embedding": 1.0,
        "input": math.sqrt(1 / hidden),
        "attention_output": math.sqrt(1 / (2 * layers * hidden)),
        "mlp_output": math.sqrt(2 / (8 * layers * hidden)),
    }[role]
    start = nn.initializer.Constant(target / _WESAR_DEVIATION)
    return layer.create_parameter([1], default_initializer=start)


def enter_tensor_parallel(x: Tensor) -> Tensor:
    """Mark where a tensor that all TP ranks hold meets their split ones.

    Forward it is `x`; backward each rank has the gradient of its own share
    of the work, and their sum over the model-parallel group is the gradient.
    """
    axis = read_topology().model
    return x if axis.size == 1 else mp_ops._c_identity(x, group=axis.group)


def runs_on_cpu(x: Tensor) -> bool:
    return x.place.is_cpu_place()


def as_float32(x: Tensor) -> Tensor:
    return x if x.dtype == paddle.float32 else x.astype("float32")


def _reparametrized(
    layer: nn.Layer, config: DecoderConfig, role: Role, is_partial: bool
) -> nn.Layer:
    """Let a layer without bias multiply its output by a scale, under WeSaR.

    Multiplying the output rather than the weight keeps the scale out of the
    rounding of FP8 products. If each TP rank has another part of the output
    (`is_partial`), the gradient of the scale is summed over them.
    """
    if config.initialization != "wesar":
        return layer
    layer.alpha = create_alpha(layer, config, role)

    def multiply(layer: nn.Layer, inputs: object, output: Tensor) -> Tensor:
        alpha = layer.alpha.astype(output.dtype)
        return output * (enter_tensor_parallel(alpha) if is_partial else alpha)

    layer.register_forward_post_hook(multiply)
    return layer


def linear(
    config: DecoderConfig,
    in_features: int,
    out_features: int,
    split: Literal["columns", "rows"],
    kind: str | None = None,
) -> nn.Layer:
    """Linear map without bias, its output or input split over the TP ranks.

    The features are those of all ranks. `kind` is the layer's name in
    `DecoderConfig.float8_linears`, which TP ranks cannot split; None: it is
    never in FP8.
    """
    role: Role = "input"
    if split == "rows":
        role = "attention_output" if kind == "attention" else "mlp_output"
    sizes = (in_features, out_features)
    attr = paddle.ParamAttr(initializer=weight_initializer(config, role))
    is_float8 = kind in config.float8_linears
    is_split = read_topology().model.size > 1
    if is_split and is_float8:
        raise ValueError(f"float8_linears={kind!r} under tensor parallelism")
    if not is_split:
        make = Float8Linear if is_float8 else nn.Linear
        layer = make(*sizes, weight_attr=attr, bias_attr=False)
    else:
        if split == "columns":
            make, how = ColumnParallelLinear, {"gather_output": False}
        else:
            make, how = RowParallelLinear, {"input_is_parallel": True}
        layer = make(*sizes, weight_attr=attr, has_bias=False, **how)
    is_partial = is_split and split == "columns"
    return _reparametrized(layer, config, role, is_partial)


def tied_head(hidden: Tensor, embedding: Tensor) -> Tensor:
    """Logits by this TP rank's rows of the embedding, [vocab, hidden]."""
    return paddle.matmul(
        enter_tensor_parallel(hidden), embedding, transpose_y=True
    )


def token_embedding(config: DecoderConfig) -> nn.Layer:
    """Embedding [vocab, hidden], its rows split over the TP ranks."""
    is_split = read_topology().model.size > 1
    kind = VocabParallelEmbedding if is_split else nn.Embedding
    start = paddle.ParamAttr(
        initializer=weight_initializer(config, "embedding")
    )
    layer = kind(config.vocab_size, config.hidden_size, weight_attr=start)
    if config.initialization == "scaled_embed":
        factor = math.sqrt(config.hidden_size)
        layer.register_forward_post_hook(
            lambda layer, inputs, output: output * factor
        )
    return _reparametrized(layer, config, "embedding", is_partial=False)


class GatedMLP(nn.Layer):
    """SwiGLU: `down(silu(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(
        self, config: DecoderConfig, width: int, kind: str = "mlp"
    ) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.gate_proj = linear(config, hidden, width, "columns", kind)
        self.up_proj = linear(config, hidden, width, "columns", kind)
        self.down_proj = linear(config, width, hidden, "rows", kind)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(_silu(self.gate_proj(x)) * self.up_proj(x))


def _silu(x: Tensor) -> Tensor:
    """`x * sigmoid(x)`; on CPUs x below -80 counts as -80 (silu: -1e-33).

    There the gradient of Paddle's float32 kernel overflows: it is -Inf at -87
    and NaN at -89. Inf and NaN stay.
    """
    if runs_on_cpu(x):
        is_low = paddle.logical_and(x < -80.0, paddle.isfinite(x))
        x = paddle.where(is_low, paddle.full_like(x, -80.0), x)
    return F.silu(x)


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

    The dtype stays. On a CPU the mean and the scale are matrix products:
    Paddle's kernels for reduction and broadcasting are several times slower.
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
    """`rms_norm` with every operation in bfloat16: a trigger of loss spikes.

    Sums over the last axis are float32 inside, as in GPU kernels of reduction.
    On a CPU, which lacks most bfloat16 kernels, float32 operations whose
    results (and whose gradients on the way back) are rounded to bfloat16 stand
    for them. There gradients that meet are summed before they are rounded.
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

    It norms the residual stream, or heads of width `head_dim`. Where TP ranks
    share the heads, its gradient is summed over them.
    """

    def __init__(
        self, config: DecoderConfig, head_dim: int | None = None
    ) -> None:
        super().__init__()
        low = config.rms_norm_precision == "bfloat16"
        self.compute = rms_norm_bfloat16 if low else rms_norm
        self.is_shared = read_topology().model.size > 1 and head_dim is not None
        self.weight = self.create_parameter(
            [head_dim or config.hidden_size],
            default_initializer=nn.initializer.Constant(1.0),
        )
        self.eps = config.rms_norm_eps

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if self.is_shared:
            weight = enter_tensor_parallel(weight)
        return self.compute(x, weight, self.eps)
