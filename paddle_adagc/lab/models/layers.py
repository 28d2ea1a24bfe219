# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""SwiGLU and the choice of plain or tensor-parallel layers."""

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

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.fp8.linear import Float8Linear, multiply_in_float8
from paddle_adagc.lab.models.initialization import (
    Role,
    embedding_factor,
    initial_alpha,
    initial_deviation,
)


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


def split_rows(x: Tensor) -> Tensor:
    """Keep this TP rank's share of the rows; the gradient is gathered.

    Args:
        x: [rows, ...], the same on every TP rank.

    Returns:
        [rows / ranks, ...].

    Raises:
        ValueError: The ranks cannot share the rows evenly.
    """
    degree = tensor_parallel_degree()
    if x.shape[0] % degree:
        raise ValueError(
            f"{x.shape[0]} tokens in a micro-batch with experts: use a "
            f"multiple of the {degree} tensor-parallel ranks that share them."
        )
    return ScatterOp.apply(x)


def whole_rows(x: Tensor) -> Tensor:
    """Undo `split_rows`; what follows is as after `whole_sequence`."""
    return GatherOp.apply(x)


def weight_initializer(
    config: DecoderConfig, role: Role
) -> nn.initializer.Initializer:
    """Return the initializer of a weight matrix."""
    return nn.initializer.Normal(0.0, initial_deviation(config, role))


def _weight_attr(config: DecoderConfig, role: Role) -> paddle.ParamAttr:
    return paddle.ParamAttr(initializer=weight_initializer(config, role))


def create_alpha(layer: nn.Layer, config: DecoderConfig, role: Role) -> Tensor:
    """WeSaR's scale of a matrix, [1], for the layer's attribute `alpha`."""
    return layer.create_parameter(
        [1],
        default_initializer=nn.initializer.Constant(
            initial_alpha(config, role)
        ),
    )


def _reparametrized(
    layer: nn.Layer, config: DecoderConfig, role: Role, is_partial: bool
) -> nn.Layer:
    """Let the layer multiply its output by a scale, if WeSaR is asked for.

    Multiplying the output rather than the weight keeps the scale out of the
    rounding of FP8 products.

    Args:
        layer: Layer with a weight and no bias.
        config: The decoder's config.
        role: Role of the layer's weight.
        is_partial: Each TP rank has another part of the output, while all
            have the same scale: its gradient is summed over them.
    """
    if config.initialization != "wesar":
        return layer
    layer.alpha = create_alpha(layer, config, role)

    def multiply(layer: nn.Layer, inputs: object, output: Tensor) -> Tensor:
        alpha = layer.alpha.astype(output.dtype)
        return output * (enter_tensor_parallel(alpha) if is_partial else alpha)

    layer.register_forward_post_hook(multiply)
    return layer


def column_linear(
    config: DecoderConfig,
    in_features: int,
    out_features: int,
    from_split_sequence: bool = False,
    kind: str | None = None,
    *,
    is_whole: bool = False,
) -> nn.Layer:
    """Linear map without bias whose output is split over the TP ranks.

    Args:
        config: The decoder's config.
        in_features: Width of the input.
        out_features: Width of the output, of all ranks together.
        from_split_sequence: The input is of the shape of `split_sequence`,
            the output holds all positions.
        kind: The layer's name in `DecoderConfig.float8_linears`; None: it
            is never in FP8.
        is_whole: This rank alone holds all of it, as one of its experts.
    """
    attr = _weight_attr(config, "input")
    is_split = tensor_parallel_degree() > 1 and not is_whole
    if is_split:
        parallel = (
            ColumnSequenceParallelLinear
            if from_split_sequence
            else fleet.meta_parallel.ColumnParallelLinear
        )
        layer = parallel(
            in_features,
            out_features,
            weight_attr=attr,
            has_bias=False,
            gather_output=False,
        )
        if kind in config.float8_linears:
            layer = multiply_in_float8(layer)
    else:
        layer = _whole_linear(config, in_features, out_features, kind, attr)
    return _reparametrized(layer, config, "input", is_partial=is_split)


def row_linear(
    config: DecoderConfig,
    in_features: int,
    out_features: int,
    to_split_sequence: bool = False,
    kind: str = "mlp",
    *,
    is_whole: bool = False,
) -> nn.Layer:
    """Linear map without bias whose input is split over the TP ranks.

    Args:
        config: The decoder's config.
        in_features: Width of the input, of all ranks together.
        out_features: Width of the output.
        to_split_sequence: The output is of the shape of `split_sequence`.
        kind: The layer's name in `DecoderConfig.float8_linears`.
        is_whole: This rank alone holds all of it, as one of its experts.
    """
    role: Role = "attention_output" if kind == "attention" else "mlp_output"
    attr = _weight_attr(config, role)
    if tensor_parallel_degree() > 1 and not is_whole:
        parallel = (
            RowSequenceParallelLinear
            if to_split_sequence
            else fleet.meta_parallel.RowParallelLinear
        )
        layer = parallel(
            in_features,
            out_features,
            weight_attr=attr,
            has_bias=False,
            input_is_parallel=True,
        )
        if kind in config.float8_linears:
            layer = multiply_in_float8(layer)
    else:
        layer = _whole_linear(config, in_features, out_features, kind, attr)
    return _reparametrized(layer, config, role, is_partial=to_split_sequence)


def _whole_linear(
    config: DecoderConfig,
    in_features: int,
    out_features: int,
    kind: str | None,
    weight_attr: paddle.ParamAttr,
) -> nn.Layer:
    """Linear map that no tensor parallelism splits."""
    is_float8 = kind in config.float8_linears
    return (Float8Linear if is_float8 else nn.Linear)(
        in_features, out_features, weight_attr=weight_attr, bias_attr=False
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
    layer = kind(
        config.vocab_size,
        config.hidden_size,
        weight_attr=_weight_attr(config, "embedding"),
    )
    factor = embedding_factor(config)
    if factor != 1.0:
        layer.register_forward_post_hook(
            lambda layer, inputs, output: output * factor
        )
    return _reparametrized(layer, config, "embedding", is_partial=False)


def runs_on_cpu(x: Tensor) -> bool:
    """Whether `x` is an eager tensor in host memory."""
    return paddle.in_dynamic_mode() and x.place.is_cpu_place()


def as_float32(x: Tensor) -> Tensor:
    """`x` itself if it is float32, or a float32 copy."""
    return x if x.dtype == paddle.float32 else x.astype("float32")


class GatedMLP(nn.Layer):
    """SwiGLU: `down(silu(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(
        self,
        config: DecoderConfig,
        width: int,
        of_split_sequence: bool = False,
        kind: str = "mlp",
        *,
        is_whole: bool = False,
    ) -> None:
        super().__init__()
        hidden, split = config.hidden_size, of_split_sequence
        self.gate_proj, self.up_proj = (
            column_linear(config, hidden, width, split, kind, is_whole=is_whole)
            for _ in range(2)
        )
        self.down_proj = row_linear(
            config, width, hidden, split, kind, is_whole=is_whole
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., hidden]` to the same shape."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
