# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""RMSNorm, SwiGLU and the choice of plain or tensor-parallel layers."""

from functools import lru_cache

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn
from paddle.distributed import fleet
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.utils.sequence_parallel_utils import (
    ColumnSequenceParallelLinear,
    GatherOp,
    RowSequenceParallelLinear,
    ScatterOp,
)

from paddle_adagc.models.config import DecoderConfig


def tensor_parallel_degree() -> int:
    """Size of fleet's model-parallel group; 1 where there is no topology."""
    try:
        topology = fleet.get_hybrid_communicate_group()
    except (AttributeError, AssertionError):
        return 1
    return topology.get_model_parallel_world_size()


def enter_tensor_parallel(x: Tensor) -> Tensor:
    """Mark where a tensor that all TP ranks hold meets their split ones.

    Forward it is `x`; backward each rank has the gradient of its own share
    of the work, and their sum over the model-parallel group is the gradient.
    """
    if tensor_parallel_degree() == 1:
        return x
    topology = fleet.get_hybrid_communicate_group()
    return mp_ops._c_identity(x, group=topology.get_model_parallel_group())


def uses_sequence_parallel(config: DecoderConfig) -> bool:
    """Whether activations between blocks are split along the sequence."""
    return bool(config.sequence_parallel) and tensor_parallel_degree() > 1


def split_sequence(x: Tensor) -> Tensor:
    """Keep this TP rank's share of the positions; the gradient is gathered.

    Args:
        x: [batch, length, hidden], the same on every TP rank.

    Returns:
        [length / ranks, batch, hidden], the layout of fleet's layers.

    Raises:
        ValueError: The ranks cannot share the length evenly.
    """
    degree = tensor_parallel_degree()
    if x.shape[1] % degree:
        raise ValueError(
            f"sequences of {x.shape[1]} tokens under sequence parallelism: "
            f"use a multiple of the {degree} tensor-parallel ranks."
        )
    return ScatterOp.apply(x.transpose([1, 0, 2]).contiguous())


def whole_sequence(x: Tensor) -> Tensor:
    """Undo `split_sequence`: every TP rank gets all positions.

    What follows must be the same computation on every TP rank: the gradient
    of this rank's positions is taken as it is, not summed over the ranks.
    """
    return GatherOp.apply(x).transpose([1, 0, 2]).contiguous()


def _weight_attr(config: DecoderConfig) -> paddle.ParamAttr:
    return paddle.ParamAttr(
        initializer=nn.initializer.Normal(0.0, config.initializer_range)
    )


def column_linear(
    config: DecoderConfig,
    in_features: int,
    out_features: int,
    from_split_sequence: bool = False,
) -> nn.Layer:
    """Linear map without bias whose output is split over the TP ranks.

    Args:
        config: Of the decoder.
        in_features: Width of the input.
        out_features: Width of the output, of all ranks together.
        from_split_sequence: The input is of the shape of `split_sequence`,
            the output holds all positions.
    """
    if tensor_parallel_degree() > 1:
        kind = (
            ColumnSequenceParallelLinear
            if from_split_sequence
            else fleet.meta_parallel.ColumnParallelLinear
        )
        return kind(
            in_features,
            out_features,
            weight_attr=_weight_attr(config),
            has_bias=False,
            gather_output=False,
        )
    return nn.Linear(
        in_features,
        out_features,
        weight_attr=_weight_attr(config),
        bias_attr=False,
    )


def row_linear(
    config: DecoderConfig,
    in_features: int,
    out_features: int,
    to_split_sequence: bool = False,
) -> nn.Layer:
    """Linear map without bias whose input is split over the TP ranks.

    Args:
        config: Of the decoder.
        in_features: Width of the input, of all ranks together.
        out_features: Width of the output.
        to_split_sequence: The output is of the shape of `split_sequence`.
    """
    if tensor_parallel_degree() > 1:
        kind = (
            RowSequenceParallelLinear
            if to_split_sequence
            else fleet.meta_parallel.RowParallelLinear
        )
        return kind(
            in_features,
            out_features,
            weight_attr=_weight_attr(config),
            has_bias=False,
            input_is_parallel=True,
        )
    return nn.Linear(
        in_features,
        out_features,
        weight_attr=_weight_attr(config),
        bias_attr=False,
    )


def tied_head(hidden: Tensor, embedding: Tensor) -> Tensor:
    """Logits by the embedding's weight.

    Args:
        hidden: [..., hidden].
        embedding: [vocab, hidden], of this TP rank's share of the vocabulary.
    """
    return paddle.matmul(
        enter_tensor_parallel(hidden), embedding, transpose_y=True
    )


def token_embedding(config: DecoderConfig) -> nn.Layer:
    """Embedding [vocab, hidden], its rows split over the TP ranks."""
    kind = (
        fleet.meta_parallel.VocabParallelEmbedding
        if tensor_parallel_degree() > 1
        else nn.Embedding
    )
    return kind(
        config.vocab_size,
        config.hidden_size,
        weight_attr=_weight_attr(config),
    )


def runs_on_cpu(x: Tensor) -> bool:
    """Whether `x` is an eager tensor in host memory."""
    return paddle.in_dynamic_mode() and x.place.is_cpu_place()


def as_float32(x: Tensor) -> Tensor:
    """`x` itself if it is float32, or a float32 copy."""
    return x if x.dtype == paddle.float32 else x.astype("float32")


@lru_cache(maxsize=8)
def _averaging_column(width: int) -> Tensor:
    return paddle.full([width, 1], 1.0 / width, dtype="float32")


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
        scale = paddle.matmul(paddle.rsqrt(mean + eps), weight.unsqueeze(0))
        normed = wide * scale
    else:
        mean = paddle.square(wide).mean(-1, keepdim=True)
        normed = wide * paddle.rsqrt(mean + eps) * weight
    return normed if x.dtype == paddle.float32 else normed.astype(x.dtype)


class RMSNorm(nn.Layer):
    """Root-mean-square norm with a trained scale (Zhang and Sennrich 2019).

    Args:
        width: Length of the last axis.
        eps: Added to the mean square.
        of_split_input: The norm works on heads or positions that are split
            over the TP ranks, while its weight is the same on all: the
            weight's gradient is summed over them in every backward pass.
    """

    def __init__(
        self, width: int, eps: float, of_split_input: bool = False
    ) -> None:
        super().__init__()
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
        return rms_norm(x, weight, self.eps)


class GatedMLP(nn.Layer):
    """SwiGLU: `down(silu(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(
        self,
        config: DecoderConfig,
        width: int,
        of_split_sequence: bool = False,
    ) -> None:
        super().__init__()
        hidden, split = config.hidden_size, of_split_sequence
        self.gate_proj = column_linear(config, hidden, width, split)
        self.up_proj = column_linear(config, hidden, width, split)
        self.down_proj = row_linear(config, width, hidden, split)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., hidden]` to the same shape."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
