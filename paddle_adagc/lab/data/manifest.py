# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The manifest of a dataset: read, and compared with the dataset's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.lab.checksums import check_seal, sampled_sha256, sha256

_VALIDATION = "_validation"
_FIX = "copy the dataset again, or remove the manifest and prepare it again"


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest that ``tools/prepare_data.py`` wrote.

    Raises:
        ValueError: It is damaged.
    """
    try:
        manifest = json.loads(path.read_bytes())
        if not isinstance(manifest, dict):
            raise ValueError(f"a {type(manifest).__name__}, not an object")
        parts = [manifest.get("train"), manifest.get("validation")]
        is_new = any("bin_sampled_sha256" in (part or ()) for part in parts)
        check_seal(manifest, () if is_new else None)
        size = manifest["tokenizer"]["vocab_size"]
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"the tokenizer's vocab_size is {size!r}")
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): {_FIX}") from error
    return manifest


def check_dataset(prefix: str, *, verify: bool = False) -> None:
    """Compare a dataset with its manifest, if it has one.

    Args:
        prefix: Path of the dataset without ``.bin`` and ``.idx``.
        verify: Compare the SHA-256 of the whole ``.bin``; otherwise its size
            and pieces of it.

    Raises:
        ValueError: A file is missing or was changed, or the manifest is
            damaged.
    """
    output, split = prefix, "train"
    if prefix.endswith(_VALIDATION):
        output, split = prefix.removesuffix(_VALIDATION), "validation"
    path = Path(f"{output}.manifest.json")
    if not path.is_file():
        return
    part = read_manifest(path).get(split)
    if part is None:
        return
    try:
        fault = _fault(prefix, part, verify=verify)
    except (KeyError, TypeError) as error:
        fault = f"{path.name} says too little of it ({error!r})"
    if fault:
        raise ValueError(f"{prefix} is damaged: {fault}: {_FIX}")


def _fault(prefix: str, part: dict[str, Any], *, verify: bool) -> str | None:
    files = {ending: Path(prefix + ending) for ending in (".bin", ".idx")}
    for path in files.values():
        if not path.is_file():
            return f"{path.name} is missing"
    size = files[".bin"].stat().st_size
    wanted = part["num_tokens"] * np.dtype(part["dtype"]).itemsize
    if size != wanted:
        return f"{files['.bin'].name} has {size:,} bytes, not {wanted:,}"
    sampled = part.get("bin_sampled_sha256")
    damaged = None
    if sha256(files[".idx"]) != part["idx_sha256"]:
        damaged = files[".idx"]
    elif (sampled and sampled_sha256(files[".bin"]) != sampled) or (
        verify and sha256(files[".bin"]) != part["bin_sha256"]
    ):
        damaged = files[".bin"]
    if damaged:
        return f"{damaged.name} has another SHA-256 than when it was written"
    return None
