# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The bytes of a record's files: lines of JSON, and arrays of rows."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

QUANTITIES = ("norm", "gamma", "h")


def line_of(value: Mapping[str, Any]) -> bytes:
    """Return a value as a line of a file."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file's complete lines."""
    if not path.exists():
        return
    data = path.read_bytes()
    data = data[: data.rfind(b"\n") + 1]
    rows = json.loads(b"[" + b",".join(data.splitlines()) + b"]")
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a line is no object")
    yield from rows


def array_bytes(rows: np.ndarray) -> bytes:
    """Return rows as ``numpy.save`` writes them."""
    content = io.BytesIO()
    np.lib.format.write_array(content, rows, allow_pickle=False)
    return content.getvalue()


def arrays(path: Path) -> Iterator[np.ndarray]:
    """Yield a file's complete arrays."""
    for array, _ in arrays_and_ends(path):
        yield array


def arrays_and_ends(path: Path) -> Iterator[tuple[np.ndarray, int]]:
    """Yield a file's complete arrays, and where each ends."""
    if not path.exists():
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            try:
                array = read_array(file, size)
            except EOFError:
                return
            except Exception:  # wrong bytes raise anything
                if file.read(1):
                    raise
                return
            if array.dtype != _row_type_of(array):
                raise ValueError(f"it holds {array.dtype}")
            yield array, file.tell()


def read_array(file: BinaryIO, size: int) -> np.ndarray:
    """Read what ``numpy.save`` wrote, if the file has all of it."""
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"version {version} of an array")
    shape, _, dtype = readers[version](file)
    num_bytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or len(shape) != 1:
        raise ValueError(f"an array of {dtype} {shape}")
    if not 0 <= num_bytes <= size - file.tell():
        file.seek(size)
        raise EOFError("the file ends within an array")
    return np.frombuffer(file.read(num_bytes), dtype)


def row_type(num_tensors: int, is_whole: bool) -> np.dtype:
    """Return the type of a row: float32, or the upper 16 bits of it."""
    kind = "<f4" if is_whole else "<u2"
    columns = [(name, kind, (num_tensors,)) for name in QUANTITIES]
    first = [("step", "<i8"), ("session", "<i4"), ("is_kept", "?")]
    return np.dtype([*first, *columns])


def _row_type_of(array: np.ndarray) -> Any:
    """Return the type that rows with as many columns have, if they are some."""
    fields = array.dtype.fields or {}
    norm = fields["norm"][0] if "norm" in fields else array.dtype
    (num_tensors,) = norm.shape or (0,)
    return row_type(num_tensors, norm.base.itemsize == 4)


def encoded(values: np.ndarray, is_whole: bool) -> np.ndarray:
    """Round float32 to its upper 16 bits, unless it is to be whole."""
    values = np.ascontiguousarray(values, "<f4")
    if is_whole:
        return values
    bits = values.view("<u4")
    rounded = (bits.astype(np.uint64) + 0x8000) >> 16
    # Inf and NaN stay as they are.
    return np.where(np.isfinite(values), rounded, bits >> 16).astype("<u2")


def decoded(values: np.ndarray) -> np.ndarray:
    """Return float32 of what :func:`encoded` gave."""
    if values.dtype.itemsize == 4:
        return values
    return (values.astype("<u4") << 16).view("<f4")


def thinned(block: np.ndarray, every: int, latest: int) -> bytes:
    """Return an array with the rows that a thinner file still has."""
    stays = block["is_kept"] | (block["step"] >= latest)
    left = block[stays | (block["step"] % every == 0)]
    is_whole = block.dtype[QUANTITIES[0]].base.itemsize == 4
    shrinks = ~(left["is_kept"] | (left["step"] >= latest))
    parts = []
    for rows, whole in ((left[shrinks], False), (left[~shrinks], is_whole)):
        new = np.zeros(len(rows), row_type(rows["norm"].shape[1], whole))
        for name in ("step", "session", "is_kept"):
            new[name] = rows[name]
        for name in QUANTITIES:
            new[name] = (
                rows[name] if not is_whole else encoded(rows[name], whole)
            )
        parts.append(array_bytes(new) if len(new) else b"")
    return b"".join(parts)
