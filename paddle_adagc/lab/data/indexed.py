# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaddleNLP's memory-mapped ``.bin``/``.idx`` datasets, read and written.

The format is read by PaddleNLP's index reader and written by its builder, so
files of its ``create_pretraining_data.py`` and of Megatron-LM work, ``.lsm``
loss masks included. Its ``causal_dataset`` is not used: there, sample ``i``
depends on the length of the run, the index that it caches on disk survives a
rewritten dataset, and a rank waits for ever for an index file that an
interrupted run left broken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike
from paddlenlp.data.indexed_dataset import MMapIndexedDataset, make_builder

from paddle_adagc.lab.checksums import sampled_sha256, sha256
from paddle_adagc.lab.data.index_format import MAGIC, check_index, token_dtype


@dataclasses.dataclass(frozen=True, eq=False)
class TokenRange:
    """Consecutive documents of a memory-mapped dataset."""

    tokens: np.ndarray
    """``[num_tokens]``, the file's dtype; a view of the file, not a copy."""

    loss_mask: np.ndarray | None
    """``[num_tokens]`` uint8, 0 where a token has no loss; None: all have."""


class IndexedTokens:
    """A memory-mapped dataset as one stream of tokens.

    Args:
        prefix: Path without ``.bin`` and ``.idx``.

    Raises:
        FileNotFoundError: One of the two files is missing.
        ValueError: The ``.idx`` is of another format, or a file is shorter
            than the ``.idx`` says.
    """

    def __init__(self, prefix: str) -> None:
        _check_files(prefix)
        self.prefix = prefix
        check_index(prefix + ".idx")
        with contextlib.redirect_stdout(None):  # "reading sizes..."
            index = MMapIndexedDataset.Index(prefix + ".idx", skip_warmup=True)
        ends = np.concatenate([[0], np.cumsum(index.sizes, dtype=np.int64)])
        if (index.sizes < 0).any() or not _is_rising(index.doc_idx, len(ends)):
            raise ValueError(
                f"{prefix}.idx is damaged: sizes below 0, or documents out of "
                "order: write the dataset again or copy it completely"
            )
        documents = ends[index.doc_idx]
        # PaddleNLP unmaps its files when it drops them, views or not: what
        # outlives `index` is copied here, and the tokens are mapped apart.
        self.num_tokens = int(ends[-1])
        self.boundaries = np.unique(np.concatenate([[0], documents, ends[-1:]]))
        """``[num_documents + 1]`` int64: first token of each document that is
        not empty, and the end."""
        self._tokens = self._map(".bin", index.dtype)
        has_mask = os.path.isfile(prefix + ".lsm")
        self._loss_mask = self._map(".lsm", np.uint8) if has_mask else None

    def _map(self, suffix: str, dtype: DTypeLike) -> np.ndarray:
        path = Path(self.prefix + suffix)
        needed = self.num_tokens * np.dtype(dtype).itemsize
        if path.stat().st_size < needed:
            raise ValueError(
                f"{path} has {path.stat().st_size} bytes, but "
                f"{self.prefix}.idx describes {needed}: write the dataset "
                "again or copy it completely"
            )
        mapped = np.memmap(path, dtype, mode="r", shape=(self.num_tokens,))
        return np.asarray(mapped)  # slices of a plain array are cheaper

    def documents(self, first: int, stop: int) -> TokenRange:
        """Return documents ``first`` to ``stop - 1`` as one range."""
        part = slice(*self.boundaries[[first, stop]].tolist())
        mask = self._loss_mask
        return TokenRange(
            self._tokens[part], None if mask is None else mask[part]
        )

    def all(self) -> TokenRange:
        """Return all documents as one range."""
        return self.documents(0, len(self.boundaries) - 1)

    def split(self, fraction: float) -> tuple[TokenRange, TokenRange]:
        """Hold out the last ``fraction`` of the documents.

        Args:
            fraction: Share of the documents, in (0, 1); rounded, at least one.

        Raises:
            ValueError: There are fewer than two documents.
        """
        count = len(self.boundaries) - 1
        if count < 2:
            raise ValueError(
                f"{self.prefix} has {count} documents: training and "
                "validation need one each at least; end each document of the "
                "dataset"
            )
        held_out = min(max(round(fraction * count), 1), count - 1)
        cut = count - held_out
        return self.documents(0, cut), self.documents(cut, count)

    def fingerprint(self) -> dict[str, str | int]:
        """Return facts by which the dataset can be recognised.

        Returns:
            ``sha256`` (hexadecimal, of the ``.idx``), ``sampled_sha256`` (of
            1,024 pieces of 4 KiB spread evenly over the ``.bin``, or of all of
            it), ``num_documents`` and ``num_tokens``.
        """
        return {
            "sha256": sha256(self.prefix + ".idx"),
            "sampled_sha256": sampled_sha256(self.prefix + ".bin"),
            "num_documents": len(self.boundaries) - 1,
            "num_tokens": self.num_tokens,
        }


def _is_rising(doc_idx: np.ndarray, stop: int) -> bool:
    inside = (doc_idx >= 0) & (doc_idx < stop)
    return bool(inside.all() and (np.diff(doc_idx) >= 0).all())


def _check_files(prefix: str) -> None:
    missing = [
        prefix + suffix
        for suffix in (".bin", ".idx")
        if not os.path.isfile(prefix + suffix)
    ]
    if missing:
        raise FileNotFoundError(
            f"{' and '.join(missing)} not found: the prefix is the path "
            "without .bin and .idx; tools/prepare_data.py, "
            "write_indexed_dataset or PaddleNLP's create_pretraining_data.py "
            "makes both files"
        )
    with open(prefix + ".idx", "rb") as file:
        magic = file.read(len(MAGIC))
    if magic != MAGIC:
        raise ValueError(
            f"{prefix}.idx starts with {magic!r}, not {MAGIC!r}: write the "
            'dataset with the "mmap" implementation'
        )
    if os.path.getsize(prefix + ".bin") == 0:
        raise ValueError(f"{prefix}.bin is empty: write at least one token")


def write_indexed_dataset(
    prefix: str,
    documents: Iterable[Sequence[int] | np.ndarray],
    *,
    vocab_size: int,
) -> None:
    """Write token lists as ``prefix.bin`` and ``prefix.idx``.

    PaddleNLP's own builder writes them: uint16 for vocabularies below 65,500,
    int32 above. ``prefix.idx`` comes last, so that an interrupted call leaves
    no dataset behind.

    Args:
        prefix: Path without ending; its directory is created. A dataset that
            is there already is replaced.
        documents: Each a non-empty list of tokens in [0, vocab_size).
        vocab_size: Size of the tokenizer's vocabulary.

    Raises:
        ValueError: There are no documents, or one is empty, is not a list of
            integers, or has a token outside the vocabulary.
    """
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".idx", ".lsm"):
        Path(prefix + suffix).unlink(missing_ok=True)
    builder = make_builder(prefix + ".bin", "mmap", token_dtype(vocab_size))
    count = 0
    for count, document in enumerate(documents, start=1):
        tokens = np.asarray(document)
        _check_document(count - 1, tokens, vocab_size)
        builder.add_item(tokens)
        builder.end_document()
    if not count:
        raise ValueError("documents is empty: give at least one")
    builder.finalize(prefix + ".idx")


def _check_document(number: int, tokens: np.ndarray, vocab_size: int) -> None:
    if tokens.ndim != 1 or not tokens.size or tokens.dtype.kind not in "iu":
        raise ValueError(
            f"document {number} is {tokens.dtype} of shape "
            f"{list(tokens.shape)}: give a non-empty list of integers"
        )
    outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if outside.size:
        raise ValueError(
            f"document {number} has token {outside[0]} outside "
            f"[0, {vocab_size}): give the tokenizer's vocab_size"
        )
