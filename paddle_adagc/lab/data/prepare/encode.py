# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One chunk to one part: what a worker does."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from paddle_adagc.lab.data.index_format import token_dtype
from paddle_adagc.lab.data.prepare.chunks import Chunk
from paddle_adagc.lab.data.prepare.parse import read_documents
from paddle_adagc.lab.data.prepare.parts import (
    MAX_MESSAGES,
    SPLITS,
    PartHeader,
    Tokens,
    part_path,
    read_part,
    write_part,
)
from paddle_adagc.lab.data.prepare.tokenizer import Tokenizer

_BATCH_CHARACTERS = 2**19  # tokenised at a time; bounds a worker's memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Settings that all chunks share."""

    folder: Path
    """For the parts."""

    tokenizer: Tokenizer
    text_field: str
    validation_fraction: float
    on_error: Literal["stop", "skip"]


@dataclasses.dataclass(frozen=True)
class Result:
    """Outcome of a chunk."""

    header: PartHeader
    num_raw_bytes: int
    is_new: bool
    """False: an earlier run had made the part."""


class Encoder:
    """Makes parts of chunks."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._encode = job.tokenizer.load()
        self._dtype = token_dtype(job.tokenizer.vocab_size)
        self._threshold = int(job.validation_fraction * 2**64)

    def process(self, chunk: Chunk) -> Result:
        """Write the chunk's part, if it is not there already.

        Raises:
            ValueError: A document is bad and is not to be skipped, or the
                part that is there is not of this text.
            OSError: The part cannot be written.
        """
        job = self._job
        path = part_path(job.folder, chunk.source, chunk.index)
        digest = hashlib.sha256(chunk.text_format.encode())
        digest.update(chunk.block.payload)
        chunk_sha256 = digest.hexdigest()
        found = read_part(path, np.dtype(self._dtype).itemsize)
        if found is None:
            header, splits = self._make_part(chunk, chunk_sha256)
            write_part(path, header, splits)
        else:
            header = found.header
            if header.chunk_sha256 != chunk_sha256 or (
                (header.record is None) != (chunk.record is None)
            ):
                raise ValueError(
                    f"{chunk.name} has changed since the run that was cut "
                    f"short: remove {job.folder} to start anew"
                )
        return Result(header, chunk.block.num_raw_bytes, is_new=found is None)

    def _make_part(
        self, chunk: Chunk, chunk_sha256: str
    ) -> tuple[PartHeader, list[Tokens]]:
        bad: list[str] = []
        texts: list[str] = []
        batches = [_NO_BATCH]
        num_characters = 0
        for document in read_documents(
            chunk, self._job.text_field, self._job.tokenizer.reserved
        ):
            if isinstance(document, ValueError):
                if self._job.on_error == "stop":
                    raise document
                bad.append(str(document))
                continue
            texts.append(document)
            num_characters += len(document)
            if num_characters >= _BATCH_CHARACTERS:
                batches.append(self._make_batch(texts, chunk, bad))
                texts, num_characters = [], 0
        batches.append(self._make_batch(texts, chunk, bad))
        splits = [
            Tokens(
                np.concatenate([b.tokens for b in of_split], dtype=self._dtype),
                np.concatenate([b.sizes for b in of_split], dtype=np.int32),
            )
            for of_split in zip(*(b.splits for b in batches), strict=True)
        ]
        header = PartHeader(
            chunk_sha256=chunk_sha256,
            num_documents=_both(len(split.sizes) for split in splits),
            num_tokens=_both(len(split.tokens) for split in splits),
            num_text_bytes=sum(b.num_text_bytes for b in batches),
            num_empty=sum(b.num_empty for b in batches),
            bad=bad[:MAX_MESSAGES],
            num_bad=len(bad),
            record=chunk.record,
        )
        return header, splits

    def _make_batch(
        self, texts: list[str], chunk: Chunk, bad: list[str]
    ) -> _Batch:
        if not texts:
            return _NO_BATCH
        tokens, sizes = self._encode(texts)
        is_end = tokens == self._job.tokenizer.eos_id
        if np.count_nonzero(is_end) > len(sizes):
            num_ends = np.add.reduceat(is_end, np.cumsum(sizes) - sizes)
            is_bad = num_ends > 1
            for index in np.flatnonzero(is_bad):
                message = (
                    f"{chunk.name}: a document, {texts[index][:60]!r}, holds "
                    "the token that ends a document"
                )
                if self._job.on_error == "stop":
                    raise ValueError(message)
                bad.append(message)
            texts = [texts[index] for index in np.flatnonzero(~is_bad)]
            tokens, sizes = _select(tokens, sizes, ~is_bad)
        encoded = [text.encode() for text in texts]
        held_out = np.array([self._is_held_out(text) for text in encoded])
        is_empty = sizes == 1
        chosen = (~held_out & ~is_empty, held_out & ~is_empty)
        return _Batch(
            [_select(tokens, sizes, of_split) for of_split in chosen],
            num_text_bytes=sum(map(len, encoded)),
            num_empty=int(is_empty.sum()),
        )

    def _is_held_out(self, text: bytes) -> bool:
        if not self._threshold:
            return False
        head = hashlib.sha256(text).digest()[:8]
        return int.from_bytes(head, "big") < self._threshold


class _Batch(NamedTuple):
    """Documents that were tokenised in one call."""

    splits: list[Tokens]
    num_text_bytes: int
    num_empty: int


_NO_TOKENS = Tokens(np.zeros(0, np.uint16), np.zeros(0, np.int32))
_NO_BATCH = _Batch([_NO_TOKENS for _ in SPLITS], 0, 0)


def _select(
    tokens: np.ndarray, sizes: np.ndarray, is_chosen: np.ndarray
) -> Tokens:
    if is_chosen.all():
        return Tokens(tokens, sizes)
    return Tokens(tokens[np.repeat(is_chosen, sizes)], sizes[is_chosen])


def _both(counts: Iterable[int]) -> tuple[int, int]:
    train, validation = counts
    return train, validation
