# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Memory-mapped ``.bin``/``.idx`` datasets, and the manifest beside them.

The format is that of PaddleNLP's ``create_pretraining_data.py`` and of
Megatron-LM. PaddleNLP's ``causal_dataset`` is not used: there, sample ``i``
depends on the length of the run, the index that it caches on disk survives a
rewritten dataset, and a rank waits for ever for an index file that an
interrupted run left broken.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from adagc_lab.checksums import check_seal, sampled_sha256, sha256

MAGIC = b"MMIDIDX\x00\x00"  # first bytes of every ``.idx``

_HEADER = struct.Struct("<QBQQ")  # version, dtype, sentences, document ends
_VERSION = 1
_TYPES = ("u1", "i1", "i2", "i4", "i8", "f8", "f4", "u2")
_DTYPES = {code: np.dtype(name) for code, name in enumerate(_TYPES, start=1)}
_MAX_UINT16_VOCAB = 65500  # as in PaddleNLP's own choice of the dtype
_COPY = "write the dataset again or copy it completely"
_FIX = (
    "copy the dataset again, or remove it with its manifest and prepare it "
    "again"
)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """uint16 for vocabularies below 65,500, int32 above."""
    return _DTYPES[8 if vocab_size < _MAX_UINT16_VOCAB else 4]


class IndexedTokens:
    """A memory-mapped dataset as one stream of tokens.

    ``prefix`` is its path without ``.bin`` and ``.idx``, in all of this module.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        path, index = prefix + ".bin", prefix + ".idx"
        missing = [file for file in (path, index) if not os.path.isfile(file)]
        if missing:
            raise FileNotFoundError(
                f"{' and '.join(missing)} not found: the prefix is the path "
                "without .bin and .idx; tools/prepare_data.py or PaddleNLP's "
                "create_pretraining_data.py makes both files"
            )
        size = os.path.getsize(path)
        if size == 0:
            raise ValueError(f"{path} is empty: write at least one token")
        dtype, sizes, documents = _read_index(index)
        ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        is_inside = (documents >= 0) & (documents < len(ends))
        is_ordered = (np.diff(documents) >= 0).all()
        if not is_ordered or not is_inside.all() or (sizes < 0).any():
            raise ValueError(
                f"{index} is damaged: sizes below 0, or documents out of "
                f"order: {_COPY}"
            )
        self.num_tokens = int(ends[-1])
        places = [[0], ends[documents], ends[-1:]]
        self.boundaries = np.unique(np.concatenate(places))
        """``[num_documents + 1]`` int64: first token of each document that is
        not empty, and the end."""
        needed = self.num_tokens * dtype.itemsize
        if size < needed:
            raise ValueError(
                f"{path} has {size} bytes, but {index} describes {needed}: "
                f"{_COPY}"
            )
        mapped = np.memmap(path, dtype, mode="r", shape=(self.num_tokens,))
        self._tokens = np.asarray(mapped)  # its slices are cheaper

    def documents(self, first: int, stop: int) -> np.ndarray:
        """Return the tokens of documents ``first`` to ``stop - 1``, a view."""
        return self._tokens[slice(*self.boundaries[[first, stop]].tolist())]

    def all(self) -> np.ndarray:
        return self.documents(0, len(self.boundaries) - 1)

    def split(self, fraction: float) -> tuple[np.ndarray, np.ndarray]:
        """Hold out the last ``fraction`` of the documents, at least one."""
        count = len(self.boundaries) - 1
        if count < 2:
            raise ValueError(
                f"{self.prefix} has {count} documents: training and "
                "validation need one each at least; end each document of the "
                "dataset"
            )
        cut = count - min(max(round(fraction * count), 1), count - 1)
        return self.documents(0, cut), self.documents(cut, count)

    def fingerprint(self) -> dict[str, str | int]:
        """Return facts by which the dataset can be recognised.

        ``sha256`` is that of the ``.idx``, ``sampled_sha256`` that of 1,024
        pieces of 4 KiB spread evenly over the ``.bin``, or of all of it.
        """
        return {
            "sha256": sha256(self.prefix + ".idx"),
            "sampled_sha256": sampled_sha256(self.prefix + ".bin"),
            "num_documents": len(self.boundaries) - 1,
            "num_tokens": self.num_tokens,
        }


def _read_index(path: str) -> tuple[np.dtype[Any], np.ndarray, np.ndarray]:
    """Read an ``.idx``: type of the tokens, sizes of the sentences, documents.

    Sizes are int32; a document is its first sentence, int64; the end follows.
    """
    size, start = os.path.getsize(path), len(MAGIC) + _HEADER.size
    with open(path, "rb") as file:
        header = file.read(start)
    magic = header[: len(MAGIC)]
    if magic != MAGIC:
        raise ValueError(
            f"{path} starts with {magic!r}, not {MAGIC!r}: write the dataset "
            'with the "mmap" implementation'
        )
    fault = "its header is cut short"
    if len(header) == start:
        version, code, sizes, documents = _HEADER.unpack(header[len(MAGIC) :])
        needed = start + 12 * sizes + 8 * documents
        fault = f"it has {size:,} bytes, and its header asks for {needed:,}"
        if version != _VERSION or code not in _DTYPES:
            fault = f"version {version}, type of tokens {code}"
        elif size >= needed:
            return (
                _DTYPES[code],
                np.memmap(path, "<i4", "r", start, (sizes,)),
                np.memmap(path, "<i8", "r", start + 12 * sizes, (documents,)),
            )
    raise ValueError(
        f"{path} is cut short, or no index of version {_VERSION} ({fault}): "
        f"{_COPY}"
    )


def write_index(
    file: BinaryIO, sizes: np.ndarray, dtype: np.dtype[Any]
) -> None:
    """Write the ``.idx`` of documents with these numbers of tokens, int32.

    Equal, byte by byte, to what PaddleNLP's builder writes of documents of one
    sentence each.
    """
    code = next(code for code, known in _DTYPES.items() if known == dtype)
    count = len(sizes)
    file.write(MAGIC + _HEADER.pack(_VERSION, code, count, count + 1))
    file.write(sizes.astype("<i4").tobytes())
    starts = np.cumsum(sizes, dtype="<i8") - sizes
    file.write((starts * dtype.itemsize).tobytes())
    file.write(np.arange(count + 1, dtype="<i8").tobytes())


def read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_bytes())
        if not isinstance(manifest, dict):
            raise ValueError(f"a {type(manifest).__name__}, not an object")
        check_seal(manifest)
        size = manifest["tokenizer"]["vocab_size"]
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"the tokenizer's vocab_size is {size!r}")
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): {_FIX}") from error
    return manifest


def _manifest_and_split(prefix: str) -> tuple[dict[str, Any], str]:
    """Return a manifest, and which part of it the prefix is.

    A dataset's own name may end in ``_validation``, too.
    """
    whole = prefix.removesuffix("_validation")
    for name, split in ((prefix, "train"), (whole, "validation")):
        path = Path(f"{name}.manifest.json")
        if path.is_file():
            return read_manifest(path), split
    return {}, "train"


def manifest_tokenizer(prefix: str | None) -> dict[str, Any]:
    """What the manifest says of the tokenizer; empty without a manifest."""
    manifest = _manifest_and_split(prefix)[0] if prefix else {}
    return manifest.get("tokenizer", {})


def check_dataset(prefix: str, *, verify: bool = False) -> None:
    """Compare a dataset with its manifest, if it has one.

    ``verify`` compares the SHA-256 of the whole ``.bin``; otherwise that of
    pieces of it.
    """
    manifest, split = _manifest_and_split(prefix)
    part = manifest.get(split)
    if part is None:
        return
    tokens, index = Path(prefix + ".bin"), Path(prefix + ".idx")
    fault = None
    try:
        size = tokens.stat().st_size
        wanted = part["num_tokens"] * np.dtype(part["dtype"]).itemsize
        digests = [
            (index, sha256, part["idx_sha256"]),
            (tokens, sampled_sha256, part["bin_sampled_sha256"]),
            *([(tokens, sha256, part["bin_sha256"])] if verify else []),
        ]
        changed = [
            path.name for path, digest, was in digests if digest(path) != was
        ]
        if size != wanted:
            fault = f"{tokens.name} has {size:,} bytes, not {wanted:,}"
        elif changed:
            fault = f"{changed[0]} has another SHA-256 than when it was written"
    except FileNotFoundError as error:
        fault = f"{Path(error.filename).name} is missing"
    except (KeyError, TypeError) as error:
        fault = f"its manifest says too little of it ({error!r})"
    if fault:
        raise ValueError(f"{prefix} is damaged: {fault}: {_FIX}")
