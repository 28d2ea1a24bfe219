# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Directories in Hugging Face's format: safetensors, JSON, tokenizers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy's bfloat16, which safetensors makes)
import numpy as np
import numpy.typing as npt
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from paddle_adagc.files import atomic_write_json, check_regular_file

Array = npt.NDArray[np.generic]

_MAX_NAME = 255  # bytes; Linux
_DTYPES = ("BF16", "F16", "F32", "F64")  # safetensors' names
CHECKSUMS = "checksums.json"  # sizes and SHA-256 of an export's weights

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_SHARD_BYTES = 5 * 10**9  # largest file of weights, as in transformers


@contextlib.contextmanager
def new_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a directory that appears under its name only when complete.

    The body writes into a hidden directory beside it. What a killed process
    left of that is removed by the next call.
    """
    target = Path(path)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(
            f"{target} exists already: remove it, or name another directory"
        )
    partial = target.absolute().parent / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_weights(
    directory: Path,
    weights: dict[str, Any],
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write tensors as one safetensors file, or as several and an index."""
    plan = split_state_dict_into_shards_factory(
        weights,
        get_storage_size=lambda array: array.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_bytes,
    )
    for file, names in plan.filename_to_tensors.items():
        (directory / file).touch()
        mode = (directory / file).stat().st_mode
        shard = {name: np.ascontiguousarray(weights[name]) for name in names}
        save_file(shard, directory / file, metadata={"format": "pt"})
        (directory / file).chmod(mode)  # safetensors allows the owner alone
    if plan.is_sharded:
        index = {
            "metadata": plan.metadata,
            "weight_map": plan.tensor_to_filename,
        }
        atomic_write_json(directory / INDEX, index)


def read_weights(directory: Path) -> dict[str, Array]:
    """Read all tensors of a directory; bfloat16 is that of `ml_dtypes`."""
    index = directory / INDEX
    if not index.exists() and not (directory / SINGLE).exists():
        raise FileNotFoundError(
            f"{directory} holds neither {SINGLE} nor {INDEX}: convert other "
            "formats to safetensors first (save_pretrained of transformers)"
        )
    weight_map = _read_index(index) if index.exists() else {}
    weights: dict[str, Array] = {}
    for file in sorted({*weight_map.values()} or {SINGLE}):
        path = directory / file
        if not path.exists():
            raise FileNotFoundError(f"{path}, named in {index}, is missing")
        check_regular_file(path)
        try:
            _check_form(path)
            weights |= load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is broken: {error}") from error
    if weight_map and weight_map.keys() != weights.keys():
        raise ValueError(
            f"{index} and its files disagree about "
            f"{sorted(weight_map.keys() ^ weights.keys())}"
        )
    return weights


def _check_form(path: Path) -> None:
    """Refuse matrices of another layout, and numbers that need a scale."""
    with safe_open(path, framework="np") as file:
        form = (file.metadata() or {}).get("format", "pt")
        dtypes = {
            name: file.get_slice(name).get_dtype()
            for name in file.keys()  # noqa: SIM118  (no mapping)
        }
    if form != "pt":
        raise ValueError(
            f"{path} has the format {form!r}, perhaps PaddleNLP's, with its "
            "matrices turned around: write it for transformers (format 'pt')"
        )
    for name, dtype in dtypes.items():
        if dtype not in _DTYPES:
            raise ValueError(
                f"{path}: {name} is {dtype}. Scales of quantized weights are "
                f"not applied: give them as {', '.join(_DTYPES)}"
            )


def _read_index(index: Path) -> dict[str, str]:
    """Read which file holds each tensor; none outside of the folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} holds no weight_map")
    for file in weight_map.values():
        is_name = isinstance(file, str) and Path(file).name == file
        if not is_name or not file or len(file.encode()) > _MAX_NAME:
            raise ValueError(
                f"{index} names {file!r:.100}: give the name of a file in its "
                "own folder"
            )
    return weight_map


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or raise a ValueError that names the file."""
    check_regular_file(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}, not a map")
    return values
