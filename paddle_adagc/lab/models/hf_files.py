# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Directories in Hugging Face's format: safetensors, JSON, tokenizers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy's bfloat16, which safetensors makes)
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from paddle_adagc.files import atomic_write_json

Array = npt.NDArray[np.generic]

_MAX_NAME = 255  # bytes; Linux
CHECKSUMS = "checksums.json"
"""Sizes and SHA-256 of an export's weights."""

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_SHARD_BYTES = 5 * 10**9
"""Weights of more bytes than this are split over files (as transformers
does)."""


@contextlib.contextmanager
def new_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a directory that appears under its name only when complete.

    The body writes into a hidden directory beside it, which is renamed at the
    end. What a killed process left of it is removed by the next call.
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
    weights: Iterable[tuple[str, Array]],
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write tensors as one safetensors file, or as several and an index.

    Arrays are contiguous. A file ends before the tensor that would exceed
    `max_shard_bytes`; one is in memory at a time.
    """
    shards: list[list[str]] = []
    shard: dict[str, Array] = {}
    total = 0

    def flush() -> None:
        path = directory / f"shard-{len(shards)}"
        path.touch()
        mode = path.stat().st_mode
        save_file(shard, path, metadata={"format": "pt"})
        path.chmod(mode)  # safetensors allows the owner alone
        shards.append([*shard])
        shard.clear()

    for name, array in weights:
        size = sum(a.nbytes for a in shard.values())
        if shard and size + array.nbytes > max_shard_bytes:
            flush()
        shard[name] = array
        total += array.nbytes
    flush()
    if len(shards) == 1:
        (directory / "shard-0").rename(directory / SINGLE)
        return
    files = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (directory / f"shard-{number}").rename(directory / file)
        files.update(dict.fromkeys(names, file))
    atomic_write_json(
        directory / INDEX,
        {"metadata": {"total_size": total}, "weight_map": files},
    )


def read_weights(directory: Path) -> dict[str, Array]:
    """Read all tensors of a directory, sharded or not.

    bfloat16 arrays have the type of `ml_dtypes`.
    """
    index = directory / INDEX
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(f"{index} holds no weight_map")
        for file in weight_map.values():
            is_name = isinstance(file, str) and Path(file).name == file
            if not is_name or not file or len(file.encode()) > _MAX_NAME:
                raise ValueError(
                    f"{index} names {file!r:.100}: give the name of a file "
                    "in its own folder"
                )
    elif (directory / SINGLE).exists():
        weight_map = None
    else:
        raise FileNotFoundError(
            f"{directory} holds neither {SINGLE} nor {INDEX}: convert other "
            "formats to safetensors first (save_pretrained of transformers)"
        )
    files = sorted(set(weight_map.values())) if weight_map else [SINGLE]
    weights: dict[str, Array] = {}
    for file in files:
        path = directory / file
        if not path.exists():
            raise FileNotFoundError(f"{path}, named in {index}, is missing")
        try:
            weights |= load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is broken: {error}") from error
    if weight_map and weight_map.keys() != weights.keys():
        raise ValueError(
            f"{index} and its files disagree about "
            f"{sorted(weight_map.keys() ^ weights.keys())}"
        )
    return weights


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or raise a ValueError that names the file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}, not a map")
    return values
