# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sources cut into chunks of whole lines: the units of work and of resuming."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

MAX_DOCUMENT_BYTES = 256 * 2**20
"""Longest line, or file of one document, that is read."""


class Block(NamedTuple):
    """Consecutive lines of a source."""

    payload: bytes
    first_line: int
    """Number of the first line, from 1."""

    num_raw_bytes: int
    """Bytes of the source that were read for it, before decompression."""


class Source(Protocol):
    """One file, or one shard of a dataset of the hub."""

    name: str
    """For messages and the manifest."""

    text_format: str
    """``"jsonl"``, ``"lines"`` or ``"text"``."""

    num_raw_bytes: int | None
    """Size before decompression; None: not known."""

    def blocks(self, chunk_bytes: int) -> Iterator[Block]:
        """Read the source in blocks of about ``chunk_bytes``.

        The blocks depend on the content and ``chunk_bytes`` alone.

        Raises:
            ValueError: The source cannot be read to its end; the message has
                name and line.
        """
        ...

    def record(self) -> dict[str, Any]:
        """Identity of the content; only after ``blocks`` has ended."""
        ...

    def is_unchanged(self, record: dict[str, Any]) -> bool:
        """Tell whether the content is still the one of ``record``."""
        ...


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A block with its place among all of them."""

    source: int
    """Number of the source, from 0."""

    index: int
    """Number of the block in its source, from 0."""

    name: str
    text_format: str
    block: Block
    record: dict[str, Any] | None
    """The source's record, with its last chunk."""


def read_chunks(
    source: Source, number: int, chunk_bytes: int
) -> Iterator[Chunk]:
    """Cut ``source`` into chunks: at least one, the last with the record."""
    held = Block(b"", 1, 0)
    count = 0
    for block in source.blocks(chunk_bytes):
        if count:
            yield Chunk(
                number, count - 1, source.name, source.text_format, held, None
            )
        held = block
        count += 1
    yield Chunk(
        number,
        max(count - 1, 0),
        source.name,
        source.text_format,
        held,
        source.record(),
    )
