# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whole weights from the files that the ranks of a layout saved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import paddle

from paddle_adagc.lab.models.safe_pickle import load_pickle

Array = npt.NDArray[np.generic]

# PaddleNLP's names: model_state.pdparams, model_state.tp00_pp01.pdparams; and
# model_state.ep01.pdparams, model_state.pp00_ep01.pdparams for other experts.
_PART = re.compile(
    r"model_state\.(?:(?:tp(\d+))?_?(?:pp(\d+))?_?(?:ep(\d+))?\.)?pdparams"
)


def merged_parts(
    directory: Path, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Array]:
    """Join the tensors from the files of all ranks of a layout.

    Args:
        directory: A checkpoint.
        shapes: Shape of the whole tensor by its name in the whole model.

    Returns:
        Every tensor in the files, in its saved dtype.

    Raises:
        FileNotFoundError: There are no weights.
        ValueError: A file is broken, or of an unknown layout.
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


def to_numpy(tensor: paddle.Tensor) -> Array:
    """Convert a tensor to NumPy; bfloat16 stays (Paddle gives its bits)."""
    array = tensor.numpy()
    is_bfloat16 = tensor.dtype == paddle.bfloat16
    return array.view(ml_dtypes.bfloat16) if is_bfloat16 else array


def to_paddle(array: Array) -> paddle.Tensor:
    """Make a CPU tensor with the array's dtype and bits."""
    is_bfloat16 = array.dtype == ml_dtypes.bfloat16
    bits = array.view(np.uint16) if is_bfloat16 else array
    return paddle.to_tensor(bits, place=paddle.CPUPlace())


def _joined(
    name: str, parts: list[Array], shapes: Mapping[str, tuple[int, ...]]
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
        isinstance(tensor, paddle.Tensor) for tensor in tensors.values()
    ):
        raise ValueError(f"{file} holds no map of names to tensors")
    return {name: to_numpy(tensor) for name, tensor in tensors.items()}
