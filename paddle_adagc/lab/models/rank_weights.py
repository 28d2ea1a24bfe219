# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whole tensors, and the parts of them that a rank holds or has saved."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import paddle
from paddle import Tensor, nn

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.fp8.linear import is_float8
from paddle_adagc.lab.models.initialization import ALPHA, initial_alpha, role_of
from paddle_adagc.lab.models.layers import weight_initializer
from paddle_adagc.lab.models.parallel import topology
from paddle_adagc.lab.models.safe_pickle import load_pickle
from paddle_adagc.lab.models.shapes import Shape, parameter_shapes
from paddle_adagc.parallel.layout import read_layout, unwrap

Array = npt.NDArray[np.generic]

# PaddleNLP's names: model_state.pdparams, model_state.tp00_pp01.pdparams; and
# model_state.ep01.pdparams, model_state.pp00_ep01.pdparams for other experts.
_PART = re.compile(
    r"model_state\.(?:(?:tp(\d+))?_?(?:pp(\d+))?_?(?:ep(\d+))?\.)?pdparams"
)


def local_part(whole: Tensor, parameter: Tensor) -> Tensor:
    """Return the part of a whole tensor that is this rank's `parameter`."""
    if not getattr(parameter, "is_distributed", False):
        return whole
    axis = topology().model
    return paddle.split(whole, axis.size, axis=parameter.split_axis)[axis.rank]


def parameters_by_key(model: nn.Layer) -> dict[str, Tensor]:
    """Return this rank's parameters by their names in the whole model.

    The model may have any layout, and fleet's wrappers.
    """
    model = unwrap(model)
    layout = read_layout(model)
    return {layout[p.name].key: p for p in model.parameters()}


@paddle.no_grad()
def initialize_weights(
    model: nn.Layer, config: DecoderConfig, seed: int
) -> None:
    """Initialise a decoder of any layout like one process with this seed.

    Every rank draws all tensors in the order in which
    `DecoderForCausalLM(config)` does after `paddle.seed(seed)`, one at a
    time, and keeps its parts. All layouts start from bit-equal weights (on the
    same kind of device). Paddle's generator is left as after building the
    whole model.
    """
    parameters = parameters_by_key(model)
    paddle.seed(seed)
    for key, whole in _drawn(config):
        if key in parameters:
            parameter = parameters[key]
            part = local_part(whole, parameter).astype(parameter.dtype)
            parameter.set_value(part)


def _drawn(config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    for key, shape in parameter_shapes(config).items():
        whole = paddle.empty(shape, paddle.get_default_dtype())
        if key.endswith(f".{ALPHA}"):
            alpha = initial_alpha(config, role_of(key))
            yield key, paddle.full_like(whole, alpha)
        elif len(shape) == 1:  # a norm's scale
            yield key, paddle.ones_like(whole)
        else:
            weight_initializer(config, role_of(key))(whole)
            yield key, whole


@paddle.no_grad()
def load_weights(model: nn.Layer, weights: Mapping[str, Array]) -> None:
    """Load whole tensors, by name, into a decoder of any layout."""
    for key, parameter in parameters_by_key(model).items():
        whole = paddle.to_tensor(weights[key], place=parameter.place)
        parameter.set_value(
            local_part(whole, parameter).astype(parameter.dtype)
        )


def quantized_parameters(model: nn.Layer) -> list[str]:
    """Return the names, in the whole model, of weights multiplied in FP8.

    They are read from this rank's layers, not from the config.
    """
    weights = {
        layer.weight.name for layer in model.sublayers() if is_float8(layer)
    }
    return [
        key
        for key, parameter in parameters_by_key(model).items()
        if parameter.name in weights
    ]


def merged_parts(
    directory: Path, shapes: Mapping[str, Shape]
) -> dict[str, Array]:
    """Join the tensors from the files of all ranks of a layout.

    `shapes` has the shape of each whole tensor by its name in the whole model.
    """
    parts: dict[str, dict[int, Array]] = {}
    files = sorted(directory.glob("model_state*.pdparams"))
    for file in files:
        match = _PART.fullmatch(file.name)
        if match is None:
            raise ValueError(
                f"{file}: weights of a layout that cannot be put together here"
            )
        rank = int(match[1] or 0)
        for name, array in _load(file).items():
            parts.setdefault(name, {})[rank] = array
    if not files:
        raise FileNotFoundError(f"{directory} holds no model_state*.pdparams")
    return {
        name: _joined(name, [by_rank[r] for r in sorted(by_rank)], shapes)
        for name, by_rank in parts.items()
    }


def to_numpy(tensor: Tensor) -> Array:
    """Convert a tensor to NumPy; bfloat16 stays (Paddle gives its bits)."""
    array = tensor.numpy()
    is_bfloat16 = tensor.dtype == paddle.bfloat16
    return array.view(ml_dtypes.bfloat16) if is_bfloat16 else array


def to_paddle(array: Array) -> Tensor:
    """Make a CPU tensor with the array's dtype and bits."""
    is_bfloat16 = array.dtype == ml_dtypes.bfloat16
    bits = array.view(np.uint16) if is_bfloat16 else array
    return paddle.to_tensor(bits, place=paddle.CPUPlace())


def _joined(
    name: str, parts: list[Array], shapes: Mapping[str, Shape]
) -> Array:
    """Join a tensor from the parts of the tensor-parallel ranks."""
    first, whole = parts[0], shapes.get(name, parts[0].shape)
    if first.shape == whole:
        return first
    for axis, size in enumerate(first.shape[: len(whole)]):
        if size * len(parts) == whole[axis]:
            return np.concatenate(parts, axis)
    return first  # the caller compares shapes


def _load(file: Path) -> dict[str, Array]:
    tensors = load_pickle(file)
    if not isinstance(tensors, dict) or not all(
        isinstance(tensor, Tensor) for tensor in tensors.values()
    ):
        raise ValueError(f"{file} holds no map of names to tensors")
    return {name: to_numpy(tensor) for name, tensor in tensors.items()}
