# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checksums of a folder's files, by which damage is found and named."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.files import sync

_BLOCK = 2**20
_PIECE = 4096
_NUM_PIECES = 1024
_MAX_THREADS = 8
SEAL = "sha256"

Description = dict[str, dict[str, Any]]
"""File name, relative to a folder -> ``bytes`` and ``sha256``."""


def sha256(path: str | os.PathLike[str]) -> str:
    """Hash a file; hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def sampled_sha256(path: str | os.PathLike[str]) -> str:
    """Hash 1,024 pieces of 4 KiB, evenly spread, or all of a small file."""
    digest = hashlib.sha256()
    last = max(Path(path).stat().st_size - _PIECE, 0)
    places = np.linspace(0, last, min(_NUM_PIECES, last // _PIECE + 2))
    with open(path, "rb") as file:
        for place in places.astype(np.int64).tolist():
            file.seek(place)
            digest.update(file.read(_PIECE))
    return digest.hexdigest()


def first_digits(data: Mapping[str, Any]) -> str:
    """Return 12 digits for the facts of a dataset; "" without a checksum."""
    digest = str(data.get("sha256", ""))
    if sampled := data.get("sampled_sha256"):  # the tokens beside their index
        digest = hashlib.sha256((digest + sampled).encode()).hexdigest()
    return digest[:12]


def describe(directory: Path, names: Iterable[str]) -> Description:
    """Put files on the disk, and return their sizes and checksums."""

    def one(name: str) -> dict[str, Any]:
        path = directory / name
        sync(path)
        return {"bytes": path.stat().st_size, "sha256": sha256(path)}

    names = list(names)
    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        return dict(zip(names, pool.map(one, names), strict=True))


def find_fault(directory: Path, described: Mapping[str, Any]) -> str | None:
    """Say which file differs from what :func:`describe` returned, and how."""

    def one(name: str) -> str | None:
        path, wanted = directory / name, described[name]["bytes"]
        if not path.is_file():
            return f"{name} is missing"
        if (size := path.stat().st_size) != wanted:
            return f"{name} has {size:,} bytes, not {wanted:,}"
        if sha256(path) != described[name]["sha256"]:
            return f"{name} has another SHA-256 than when it was written"
        return None

    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        return next(filter(None, pool.map(one, sorted(described))), None)


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the SHA-256 of its other keys."""
    content = json.loads(json.dumps(value))  # keys and tuples as JSON has them
    return {**content, SEAL: _digest(content)}


def check_seal(value: Mapping[str, Any]) -> None:
    """Refuse what was changed since :func:`sealed` returned it."""
    if SEAL not in value:
        raise ValueError("its SHA-256 is missing")
    if value[SEAL] != _digest(value):
        raise ValueError("it has another SHA-256 than when it was written")


def _digest(value: Mapping[str, Any]) -> str:
    content = {key: part for key, part in value.items() if key != SEAL}
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
