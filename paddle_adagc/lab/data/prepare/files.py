# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Local text and JSON-lines files, compressed by gzip or not."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

from paddle_adagc.lab.data.prepare.chunks import MAX_DOCUMENT_BYTES, Block

TextFormat = Literal["auto", "jsonl", "lines", "text"]

TEXT_FORMATS = get_args(TextFormat)
"""How local files hold documents: by the file's ending; one JSON object a
line; one document a line; one document a file."""

_FORMATS = {".jsonl": "jsonl", ".json": "jsonl", ".txt": "lines"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK = 2**20  # bytes hashed at a time


class LocalFile:
    """A source on the disk.

    Args:
        path: The file; ``.gz`` at the end means gzip.
        text_format: One of :data:`TEXT_FORMATS`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: ``text_format`` is ``"auto"`` and the ending unknown.
    """

    def __init__(self, path: str | os.PathLike[str], text_format: str) -> None:
        self.path = Path(path)
        self.name = str(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{path} is not a file")
        self._is_compressed = self.path.suffix == ".gz"
        self.text_format = (
            self._format_of_name() if text_format == "auto" else text_format
        )
        self.num_raw_bytes: int | None = self.path.stat().st_size
        self._record: dict[str, Any] = {}

    def _format_of_name(self) -> str:
        name = Path(self.path.stem) if self._is_compressed else self.path
        if name.suffix not in _FORMATS:
            raise ValueError(
                f"{self.name}: the ending says no format: give --format jsonl, "
                "lines or text (--format auto knows .jsonl, .json and .txt, "
                "with or without .gz)"
            )
        return _FORMATS[name.suffix]

    def record(self) -> dict[str, Any]:
        """Format, size in bytes, time of change and SHA-256 of the file."""
        return self._record

    def is_unchanged(self, record: dict[str, Any]) -> bool:
        """Compare format and size, and name and time or else the SHA-256."""
        stat = self.path.stat()
        mine = self.text_format, stat.st_size
        if (record["format"], record.get("size")) != mine:
            return False
        written = record["name"], record["mtime_ns"]
        if written == (self.name, stat.st_mtime_ns):
            return True
        with open(self.path, "rb") as file:
            hashed = _HashingReader(file)
            while hashed.read(_BLOCK):
                pass
        return record["sha256"] == hashed.digest.hexdigest()

    def blocks(self, chunk_bytes: int) -> Iterator[Block]:
        """See :class:`chunks.Source`."""
        with open(self.path, "rb") as raw:
            before = os.fstat(raw.fileno())
            if self._is_compressed and not before.st_size:
                raise ValueError(
                    f"{self.name} is not a complete gzip file: it is empty"
                )
            hashed = _HashingReader(raw)
            try:
                yield from self._read(hashed, chunk_bytes)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(
                    f"{self.name} is not a complete gzip file: "
                    f"{error}, after {hashed.count:,} bytes"
                ) from error
            after = os.fstat(raw.fileno())
        if (before.st_size, before.st_mtime_ns) != (
            after.st_size,
            after.st_mtime_ns,
        ):
            raise ValueError(f"{self.name} changed while it was read")
        self._record = {
            "name": self.name,
            "format": self.text_format,
            "size": after.st_size,
            "mtime_ns": after.st_mtime_ns,
            "sha256": hashed.digest.hexdigest(),
        }

    def _read(
        self, hashed: _HashingReader, chunk_bytes: int
    ) -> Iterator[Block]:
        stream = cast(
            BinaryIO,
            gzip.GzipFile(fileobj=hashed)
            if self._is_compressed
            else io.BufferedReader(hashed),
        )
        payloads = (
            iter([stream.read(MAX_DOCUMENT_BYTES + 1)])
            if self.text_format == "text"
            else _cut(stream, chunk_bytes)
        )
        line, position = 1, 0
        for payload in payloads:
            if len(payload) > MAX_DOCUMENT_BYTES:
                raise ValueError(
                    f"{self.name}, line {line}: more than "
                    f"{MAX_DOCUMENT_BYTES:,} bytes cannot be one document: "
                    "split it, or give another --format"
                )
            start = len(_BYTE_ORDER_MARK) if _is_marked(payload, line) else 0
            yield Block(payload[start:], line, hashed.count - position)
            position = hashed.count
            line += payload.count(b"\n")


def _is_marked(payload: bytes, line: int) -> bool:
    return line == 1 and payload.startswith(_BYTE_ORDER_MARK)


def _cut(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Read about ``size`` bytes at a time, to the end of a line.

    A line of more than ``MAX_DOCUMENT_BYTES`` is given as one piece of more
    than that, without its end.
    """
    rest: list[bytes] = []
    held = 0
    while block := stream.read(size):
        cut = block.rfind(b"\n") + 1
        if cut or held + len(block) > MAX_DOCUMENT_BYTES:
            cut = cut or len(block)
            yield b"".join([*rest, block[:cut]])
            rest, held = [], 0
        rest.append(block[cut:])
        held += len(block) - cut
    if held:
        yield b"".join(rest)


class _HashingReader(io.RawIOBase):
    """Passes a file through, and counts and hashes it."""

    def __init__(self, raw: io.BufferedReader) -> None:
        super().__init__()
        self._raw = raw
        self.digest = hashlib.sha256()
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._raw.readinto(buffer)
        self.digest.update(memoryview(buffer)[:count])
        self.count += count
        return count


def find_files(
    inputs: Sequence[str], text_format: str, left_out: Collection[Path] = ()
) -> list[LocalFile]:
    """Open files, and the files below folders by name, in the given order.

    Hidden files (their name starts with a dot) in folders are left out.

    Args:
        inputs: Files and folders.
        text_format: One of :data:`TEXT_FORMATS`.
        left_out: Files, and folders of files, that folders' files are not.

    Raises:
        FileNotFoundError: A path is neither, or a folder is empty.
        ValueError: A format is unknown.
    """
    paths: list[Path] = []
    own = {path.resolve() for path in left_out}
    for given in map(Path, inputs):
        if not given.is_dir():
            paths.append(given)
            continue
        found = sorted(
            path
            for path in given.rglob("*")
            if path.is_file()
            and not path.name.startswith(".")
            and own.isdisjoint([path.resolve(), *path.resolve().parents])
        )
        if not found:
            raise FileNotFoundError(f"{given} has no files")
        paths += found
    return [LocalFile(path, text_format) for path in paths]
