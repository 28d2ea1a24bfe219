# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ``.idx`` file of PaddleNLP's and Megatron-LM's mapped datasets."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from typing import BinaryIO

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
"""First bytes of every ``.idx``."""

_VERSION = 1
_MAX_UINT16_VOCAB = 65500  # as in PaddleNLP's own choice of the dtype
_DTYPE_CODES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
_READABLE_CODES = range(1, 9)
_HEADER = struct.Struct("<QBQQ")
_BLOCK = 2**20  # documents written at a time


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.int32]:
    """uint16 for vocabularies below 65,500, int32 above."""
    return np.uint16 if vocab_size < _MAX_UINT16_VOCAB else np.int32


def write_index(
    file: BinaryIO,
    sizes: Callable[[], Iterable[np.ndarray]],
    *,
    num_documents: int,
    dtype: type[np.uint16] | type[np.int32],
) -> None:
    """Write the ``.idx`` of documents of one sentence each.

    Equal, byte by byte, to what PaddleNLP's builder writes, which holds a
    Python list of all documents in memory; this holds one block of them.

    Args:
        file: Open for writing, at its start.
        sizes: Gives the documents' numbers of tokens, int32 ``[n]`` a block;
            called twice.
        num_documents: Sum of the ``n``.
        dtype: NumPy type of the tokens in the ``.bin``.
    """
    item_size = np.dtype(dtype).itemsize
    file.write(MAGIC)
    file.write(struct.pack("<QB", _VERSION, _DTYPE_CODES[np.dtype(dtype)]))
    file.write(struct.pack("<QQ", num_documents, num_documents + 1))
    for block in sizes():
        file.write(block.astype("<i4").tobytes())
    address = 0
    for block in sizes():
        ends = address + np.cumsum(block, dtype=np.int64) * item_size
        file.write((ends - block.astype(np.int64) * item_size).tobytes())
        address = int(ends[-1]) if len(ends) else address
    for start in range(0, num_documents + 1, _BLOCK):
        stop = min(start + _BLOCK, num_documents + 1)
        file.write(np.arange(start, stop, dtype=np.int64).tobytes())


def check_index(path: str | os.PathLike[str]) -> None:
    """Check an ``.idx``: version, and the size that its header asks for.

    Raises:
        ValueError: It is of another version, or cut short.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        header = file.read(len(MAGIC) + _HEADER.size)
    fault = "its header is cut short"
    if len(header) == len(MAGIC) + _HEADER.size:
        version, code, sizes, documents = _HEADER.unpack(header[len(MAGIC) :])
        needed = len(header) + 12 * sizes + 8 * documents
        fault = f"it has {size:,} bytes, and its header asks for {needed:,}"
        if version != _VERSION or code not in _READABLE_CODES:
            fault = f"version {version}, type of tokens {code}"
        elif size >= needed:
            return
    raise ValueError(
        f"{path} is cut short, or no index of version {_VERSION} ({fault}): "
        "write the dataset again or copy it completely"
    )
