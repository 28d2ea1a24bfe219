# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokens of documents to the files of a dataset, one split after the other."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from paddle_adagc.files import temporary_path
from paddle_adagc.lab.checksums import sampled_sha256
from paddle_adagc.lab.data.index_format import token_dtype, write_index
from paddle_adagc.lab.data.prepare.config import PrepareConfig
from paddle_adagc.lab.data.prepare.tokenizer import Tokenizer

SPLITS = ("train", "validation")
MAX_MESSAGES = 10
"""Messages about bad documents that the manifest keeps."""


def _tables(parts: Sequence[str]) -> Iterator[pa.Table]:
    """Read part by part: there may be more of them than open files."""
    for part in parts:
        with pa.memory_map(part) as file:
            yield pa.ipc.open_stream(file).read_all()


def count_documents(parts: Sequence[str]) -> dict[str, Any]:
    """Count what the manifest says of all documents.

    Args:
        parts: Arrow files with the columns of :func:`token_schema`.
    """
    counts = dict.fromkeys(("num_text_bytes", "num_empty", "num_bad"), 0)
    bad: list[str] = []
    for table in _tables(parts):
        sizes = _sizes(table["tokens"])
        faults = [fault for fault in table["fault"].to_pylist() if fault]
        counts["num_text_bytes"] += int(table["num_bytes"].to_numpy().sum())
        counts["num_empty"] += int((sizes == 0).sum()) - len(faults)
        counts["num_bad"] += len(faults)
        bad += faults
    return {**counts, "bad": bad[:MAX_MESSAGES]}


def write_splits(
    config: PrepareConfig,
    parts: Sequence[str],
    tokenizer: Tokenizer,
    folder: Path,
) -> dict[str, Any]:
    """Write all splits, or none; gives what the manifest says of them."""
    names = SPLITS if config.validation_fraction else SPLITS[:1]
    found: dict[str, Any] = {}
    numbers = [
        sum(len(sizes) for sizes in _split_sizes(parts, split))
        for split in range(len(names))
    ]
    for name, number in zip(names, numbers, strict=True):
        if not number:
            raise ValueError(
                f"no documents for {name}: the source has {sum(numbers)}, and "
                f"validation_fraction is {config.validation_fraction}. A hash "
                "of its text decides, so copies of a document stay together: "
                "with few distinct documents give another fraction"
            )
    try:
        for split, name in enumerate(names):
            prefix = split_prefix(config.output, split)
            dtype = token_dtype(tokenizer.vocab_size)
            found[name] = _write_split(prefix, parts, split, dtype, folder)
    except BaseException:
        for path in dataset_files(config.output):
            path.unlink(missing_ok=True)
        raise
    return found


def _write_split(
    prefix: Path,
    parts: Sequence[str],
    split: int,
    dtype: type[np.uint16] | type[np.int32],
    folder: Path,
) -> dict[str, Any]:
    """Write one split as ``.bin`` and ``.idx``."""
    num_documents = num_tokens = 0
    path = _with_ending(prefix, ".bin")
    with _hashed_file(path, folder) as tokens_file:
        for table in _tables(parts):
            chosen = table.filter(_is_in(table, split))
            tokens = chosen["tokens"].combine_chunks().flatten().to_numpy()
            num_documents += chosen.num_rows
            num_tokens += len(tokens)
            tokens_file.write(tokens.astype(dtype, copy=False).tobytes())
    bin_sampled_sha256 = sampled_sha256(path)
    with _hashed_file(_with_ending(prefix, ".idx"), folder) as index_file:
        write_index(
            cast(BinaryIO, index_file),
            lambda: _split_sizes(parts, split),
            num_documents=num_documents,
            dtype=dtype,
        )
    return {
        "prefix": str(prefix),
        "dtype": np.dtype(dtype).name,
        "num_documents": num_documents,
        "num_tokens": num_tokens,
        "bin_sha256": tokens_file.digest.hexdigest(),
        "bin_sampled_sha256": bin_sampled_sha256,
        "idx_sha256": index_file.digest.hexdigest(),
    }


def _split_sizes(parts: Sequence[str], split: int) -> Iterator[np.ndarray]:
    """Yield the documents' numbers of tokens, int32 ``[n]``."""
    for table in _tables(parts):
        yield _sizes(table["tokens"])[_is_in(table, split).to_numpy(False)]


def _is_in(table: pa.Table, split: int) -> pa.Array:
    held_out = table["is_held_out"].to_numpy()
    return pa.array((_sizes(table["tokens"]) > 0) & (held_out == bool(split)))


def _sizes(tokens: pa.ChunkedArray) -> np.ndarray:
    chunks = [np.diff(chunk.offsets.to_numpy()) for chunk in tokens.chunks]
    return np.concatenate([np.zeros(0, np.int32), *chunks])


class _HashingWriter:
    """Writes to a file, and hashes what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.digest.update(data)
        self._file.write(data)


@contextlib.contextmanager
def _hashed_file(path: Path, folder: Path) -> Iterator[_HashingWriter]:
    with (
        temporary_path(path, folder) as temporary,
        temporary.open("wb") as file,
    ):
        yield _HashingWriter(file)


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
