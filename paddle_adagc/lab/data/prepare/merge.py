# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts to a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from paddle_adagc.files import temporary_path
from paddle_adagc.lab.checksums import sampled_sha256
from paddle_adagc.lab.data.index_format import token_dtype, write_index
from paddle_adagc.lab.data.prepare.parts import (
    SPLITS,
    Part,
    part_path,
    read_part,
)

_BLOCK = 2**22  # bytes copied at a time


class Parts:
    """All parts of a dataset, in order; read from the disk at each pass.

    Args:
        folder: Folder of the parts.
        num_parts: Number of parts of each source.
        vocab_size: Size of the tokenizer's vocabulary.
    """

    def __init__(
        self, folder: Path, num_parts: Sequence[int], vocab_size: int
    ) -> None:
        self._folder = folder
        self._num_parts = num_parts
        self.dtype = token_dtype(vocab_size)

    def __iter__(self) -> Iterator[Part]:
        item_size = np.dtype(self.dtype).itemsize
        for source, count in enumerate(self._num_parts):
            for index in range(count):
                path = part_path(self._folder, source, index)
                part = read_part(path, item_size)
                if part is None:
                    raise ValueError(f"{path} is gone: run again")
                yield part

    def write(self, prefix: Path, split: int) -> dict[str, Any]:
        """Write one split as ``.bin`` and ``.idx``.

        Returns:
            Prefix, dtype, numbers of documents and tokens, and the SHA-256 of
            both files.
        """
        num_documents = num_tokens = 0
        path = _with_ending(prefix, ".bin")
        with (
            temporary_path(path, self._folder) as temporary,
            temporary.open("wb") as file,
        ):
            hashed = _HashingWriter(file)
            for part in self:
                num_documents += part.header.num_documents[split]
                num_tokens += part.header.num_tokens[split]
                _copy(part, split, hashed)
        bin_sha256 = hashed.digest.hexdigest()
        bin_sampled_sha256 = sampled_sha256(path)
        path = _with_ending(prefix, ".idx")
        with (
            temporary_path(path, self._folder) as temporary,
            temporary.open("wb") as file,
        ):
            hashed = _HashingWriter(file)
            write_index(
                cast(BinaryIO, hashed),
                lambda: (part.sizes(split) for part in self),
                num_documents=num_documents,
                dtype=self.dtype,
            )
        return {
            "prefix": str(prefix),
            "dtype": np.dtype(self.dtype).name,
            "num_documents": num_documents,
            "num_tokens": num_tokens,
            "bin_sha256": bin_sha256,
            "bin_sampled_sha256": bin_sampled_sha256,
            "idx_sha256": hashed.digest.hexdigest(),
        }


def split_prefix(output: str, split: int) -> Path:
    """Prefix of a split: the output's own, and ``<output>_validation``."""
    return Path(output if split == 0 else f"{output}_{SPLITS[split]}")


def dataset_files(output: str) -> list[Path]:
    """Return the files that a dataset may consist of, without the manifest.

    A loss mask (``.lsm``) of another dataset would be read with the new files.
    """
    return [
        _with_ending(split_prefix(output, split), ending)
        for split in range(len(SPLITS))
        for ending in (".bin", ".idx", ".lsm")
    ]


def _with_ending(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def _copy(part: Part, split: int, target: _HashingWriter) -> None:
    start, remaining = part.token_range(split)
    with open(part.path, "rb") as source:
        source.seek(start)
        while remaining:
            block = source.read(min(remaining, _BLOCK))
            target.write(block)
            remaining -= len(block)


class _HashingWriter:
    """Writes to a file, and hashes what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.digest.update(data)
        self._file.write(data)
