# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Weights of checkpoints of any layout, and the experts of every rank."""

from __future__ import annotations

from pathlib import Path

import paddle
from ml_dtypes import bfloat16
from paddle import Tensor, nn

from paddle_adagc.lab.models.parallel import topology
from paddle_adagc.lab.models.rank_weights import (
    load_weights,
    merged_parts,
    parameters_by_key,
)
from paddle_adagc.parallel.layout import TensorLayout, read_layout, unwrap


def load_model(model: nn.Layer, checkpoint: Path) -> None:
    """Load a checkpoint of any layout, the weights alone.

    Args:
        model: Of this rank's layout, before fleet wraps it.
        checkpoint: Directory with ``model_state*.pdparams``.

    Raises:
        FileNotFoundError: It holds no weights.
        ValueError: They are broken, or another model's.
    """
    layout = layout_by_key(model)
    shapes = {key: whole_shape(tensor) for key, tensor in layout.items()}
    weights = {
        key: array.astype("float32") if array.dtype == bfloat16 else array
        for key, array in merged_parts(checkpoint, shapes).items()
    }
    buffers = _persistable_buffers(model)
    shapes |= {key: tuple(buffer.shape) for key, buffer in buffers.items()}
    for key, shape in shapes.items():
        found = weights[key].shape if key in weights else "missing"
        if found != shape:
            raise ValueError(
                f"{checkpoint} holds the weights of another model: {key} is "
                f"{found} and should be {shape}"
            )
    load_weights(model, weights)
    for key, buffer in buffers.items():
        buffer.set_value(paddle.to_tensor(weights[key]).astype(buffer.dtype))


def save_experts(checkpoint: Path, model: nn.Layer) -> None:
    """Save this rank's experts, which PaddleNLP saves of the first rank only.

    Args:
        checkpoint: Directory to write to.
        model: The model, with or without fleet's wrappers.
    """
    place = topology()
    if place.expert.rank == 0 or place.moe_sharding.rank:
        return
    layout = layout_by_key(model)
    experts = {
        key: parameter
        for key, parameter in parameters_by_key(model).items()
        if layout[key].is_expert
    }
    stage = f"pp{place.pipe.rank:02}_" if place.pipe.size > 1 else ""
    name = f"model_state.{stage}ep{place.expert.rank:02}.pdparams"
    paddle.save(experts, str(checkpoint / name))


def layout_by_key(model: nn.Layer) -> dict[str, TensorLayout]:
    """Return this rank's tensors by their names in the whole model."""
    return {tensor.key: tensor for tensor in read_layout(model).values()}


def whole_shape(tensor: TensorLayout) -> tuple[int, ...]:
    """Return the shape of a tensor over all tensor-parallel ranks."""
    num_ranks = topology().model.size if tensor.is_tp_split else 1
    return tuple(
        size * num_ranks if axis == tensor.split_axis else size
        for axis, size in enumerate(tensor.shape)
    )


def _persistable_buffers(model: nn.Layer) -> dict[str, Tensor]:
    model = unwrap(model)
    names = {parameter.name for parameter in model.parameters()}
    return {
        key: tensor
        for key, tensor in model.state_dict().items()
        if tensor.name not in names
    }
