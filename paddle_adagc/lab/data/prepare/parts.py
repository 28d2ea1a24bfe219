# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokens of one chunk on the disk: what a killed run does not do again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddle_adagc.files import temporary_path
from paddle_adagc.lab.checksums import sha256

SPLITS = ("train", "validation")
_NAME = re.compile(r"(\d{6,})-(\d{6,})\.part")

MAX_MESSAGES = 10
"""Messages about bad documents that are kept, of a part and of all."""


class Tokens(NamedTuple):
    """Documents of one split."""

    tokens: np.ndarray
    """``[num_tokens]``, each document with its end token."""

    sizes: np.ndarray
    """``[num_documents]`` int32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartHeader:
    """First line of a part, as JSON; the two splits' arrays follow."""

    chunk_sha256: str
    """Digest of the chunk's format and text."""

    num_documents: tuple[int, int]
    """In each of :data:`SPLITS`."""

    num_tokens: tuple[int, int]
    """In each of :data:`SPLITS`, end tokens included."""

    num_text_bytes: int
    """UTF-8 bytes of the documents."""

    num_empty: int
    """Documents without tokens, which are left out."""

    bad: list[str]
    """Messages about bad documents that were left out: the first ones."""

    num_bad: int
    """Number of bad documents that were left out."""

    record: dict[str, Any] | None
    """The source's record in its last part."""

    payload_sha256: str = ""
    """Digest of the arrays; empty in parts of older versions."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part's place on the disk and its header."""

    path: Path
    header: PartHeader
    offset: int
    """Bytes before the arrays."""

    token_bytes: int
    """Bytes of a token."""

    def sizes(self, split: int) -> np.ndarray:
        """Tokens of each document of a split, int32 ``[num_documents]``."""
        return np.fromfile(
            self.path,
            np.int32,
            self.header.num_documents[split],
            offset=self._start(split),
        )

    def token_range(self, split: int) -> tuple[int, int]:
        """First byte and number of bytes of a split's tokens."""
        start = self._start(split) + 4 * self.header.num_documents[split]
        return start, self.token_bytes * self.header.num_tokens[split]

    def _start(self, split: int) -> int:
        return self.offset + sum(
            4 * documents + self.token_bytes * tokens
            for documents, tokens in zip(
                self.header.num_documents[:split],
                self.header.num_tokens[:split],
                strict=True,
            )
        )

    def num_bytes(self) -> int:
        """Size of the whole file."""
        return self._start(len(SPLITS))


def part_path(folder: Path, source: int, index: int) -> Path:
    """Return the path of the part for chunk ``index`` of a source."""
    return folder / f"{source:06}-{index:06}.part"


def write_part(
    path: Path, header: PartHeader, splits: Sequence[Tokens]
) -> None:
    """Write a part, with its checksum, atomically."""
    arrays = [array.data for split in splits for array in reversed(split)]
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array)
    header = dataclasses.replace(header, payload_sha256=digest.hexdigest())
    with temporary_path(path) as temporary, temporary.open("wb") as file:
        file.write(json.dumps(dataclasses.asdict(header)).encode() + b"\n")
        for array in arrays:
            file.write(array)


def check_part(part: Part) -> None:
    """Compare a part with its checksum.

    Raises:
        ValueError: It was changed since it was written.
    """
    wanted = part.header.payload_sha256
    if wanted and wanted != sha256(part.path, start=part.offset):
        raise ValueError(f"{part.path} is damaged: remove it and run again")


def read_part(path: Path, token_bytes: int) -> Part | None:
    """Open a part; None: there is none.

    Raises:
        ValueError: It does not have the size that its header says.
    """
    try:
        with open(path, "rb") as file:
            line = file.readline()
            size = file.seek(0, 2)
    except FileNotFoundError:
        return None
    try:
        part = Part(
            path, PartHeader(**json.loads(line)), len(line), token_bytes
        )
        is_whole = part.num_bytes() == size
    except (RecursionError, ValueError, TypeError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{path} is damaged: remove it and run again")
    return part


def count_parts(folder: Path) -> dict[int, int]:
    """Count the parts of each source that has any, by the source's number.

    It counts from chunk 0 to the first missing one.
    """
    found: dict[int, set[int]] = {}
    for entry in folder.iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            found.setdefault(int(match[1]), set()).add(int(match[2]))
    return {
        source: next(n for n in range(len(chunks) + 1) if n not in chunks)
        for source, chunks in found.items()
    }
