# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whole tensors, and the parts of them that a rank holds or has saved."""

import re
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import paddle
from paddle import Tensor, nn

from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.fp8 import is_float8
from adagc_lab.models.hf_files import Array
from adagc_lab.models.parallel import topology
from adagc_lab.models.safe_pickle import load_pickle
from adagc_lab.models.shapes import Shape, whole_model
from paddle_adagc.parallel.layout import read_layout, unwrap

# PaddleNLP's names: model_state.pdparams, model_state.tp00_pp01.pdparams; and
# model_state.ep01.pdparams, model_state.pp00_ep01.pdparams for other experts.
_PART = re.compile(
    r"model_state\.(?:(?:tp(\d+))?_?(?:pp(\d+))?_?(?:ep(\d+))?\.)?pdparams"
)


def parameters_by_key(model: nn.Layer) -> dict[str, Tensor]:
    """Return this rank's parameters by their names in the whole model."""
    model = unwrap(model)
    layout = read_layout(model)
    return {layout[p.name].key: p for p in model.parameters()}


@paddle.no_grad()
def initialize_weights(
    model: nn.Layer, config: DecoderConfig, seed: int
) -> None:
    """Initialise a decoder of any layout like one process with this seed.

    Every rank draws all tensors as `DecoderForCausalLM(config)` does after
    `paddle.seed(seed)`, one at a time, and keeps its parts. Paddle's generator
    is left as after that.
    """
    parameters = parameters_by_key(model)
    paddle.seed(seed)
    for key, whole in whole_model(config).named_parameters():
        whole.initialize()
        if key in parameters:
            _set(parameters[key], whole)
        whole._clear_data()


@paddle.no_grad()
def load_weights(model: nn.Layer, weights: Mapping[str, Array]) -> None:
    """Load whole tensors, by name, into a decoder of any layout."""
    for key, parameter in parameters_by_key(model).items():
        _set(parameter, paddle.to_tensor(weights[key], place=parameter.place))


def _set(parameter: Tensor, whole: Tensor) -> None:
    """Set this rank's part of a whole tensor."""
    if getattr(parameter, "is_distributed", False):
        axis = topology().model
        parts = paddle.split(whole, axis.size, axis=parameter.split_axis)
        whole = parts[axis.rank]
    parameter.set_value(whole.astype(parameter.dtype))


def quantized_parameters(model: nn.Layer) -> list[str]:
    """Name the weights that this rank's layers multiply in FP8."""
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
    """Join the tensors, of these whole shapes, from all ranks' files."""
    parts: dict[str, dict[int, Array]] = {}
    sources: dict[str, str] = {}
    files = sorted(directory.glob("model_state*.pdparams"))
    if not files:
        raise FileNotFoundError(f"{directory} holds no model_state*.pdparams")
    for file in files:
        match = _PART.fullmatch(file.name)
        if match is None:
            raise ValueError(
                f"{file}: weights of a layout that cannot be put together here"
            )
        tensors = load_pickle(file)
        if not isinstance(tensors, dict) or not all(
            isinstance(tensor, Tensor) for tensor in tensors.values()
        ):
            raise ValueError(f"{file} holds no map of names to tensors")
        for name, tensor in tensors.items():
            by_rank, rank = parts.setdefault(name, {}), int(match[1] or 0)
            array = to_numpy(tensor)
            known = by_rank.setdefault(rank, array)
            if known is not array and known.tobytes() != array.tobytes():
                raise ValueError(
                    f"{file}: {name} differs from that of {sources[name]}: one "
                    "of them is another run's, remove it"
                )
            sources[name] = file.name
    return {
        name: _joined([by_rank[r] for r in sorted(by_rank)], shapes.get(name))
        for name, by_rank in parts.items()
    }


def _joined(parts: list[Array], whole: Shape | None) -> Array:
    """Join a tensor from the parts of the tensor-parallel ranks."""
    first = parts[0]
    if whole is not None and first.shape != whole:
        for axis, size in enumerate(first.shape[: len(whole)]):
            if size * len(parts) == whole[axis]:
                return np.concatenate(parts, axis)
    return first  # the caller compares shapes


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
