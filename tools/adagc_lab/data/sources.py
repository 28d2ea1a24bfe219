# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where documents come from: local files, or shards of a dataset of the hub."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

from adagc_lab.checksums import sha256

TextFormat = Literal["auto", "jsonl", "lines", "text"]

TEXT_FORMATS = get_args(TextFormat)
"""How local files hold documents: by the file's ending; one JSON object a
line; one document a line; one document a file."""

MAX_DOCUMENT_BYTES = 16 * 2**20
"""Longest line, or file of one document, that is read."""

_FORMATS = {".jsonl": "jsonl", ".json": "jsonl", ".txt": "lines"}
_ARRAY = (
    "a JSON array, where one JSON object a line is expected: write one a line "
    "(jq -c '.[]' FILE > FILE.jsonl), or give another --format"
)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_END = b"\n"


@dataclasses.dataclass(frozen=True)
class LocalFile:
    """A file on the disk; ``.gz`` at the end means gzip."""

    name: str
    text_format: str  # "jsonl", "lines" or "text"
    size: int
    mtime_ns: int

    def record(self) -> dict[str, Any]:
        digest = sha256(self.name)
        self._check_unchanged(os.stat(self.name))
        facts = {"name": self.name, "format": self.text_format}
        return {**facts, "size": self.size, "sha256": digest}

    def _check_unchanged(self, stat: os.stat_result) -> None:
        if (stat.st_size, stat.st_mtime_ns) != (self.size, self.mtime_ns):
            raise ValueError(f"{self.name} changed while it was read")

    def _is_array(self, first: bytes) -> bool:
        """Tell whether JSON lines begin as a JSON array does."""
        return self.text_format == "jsonl" and first.lstrip()[:1] == b"["

    def lines(self) -> Iterator[bytes]:
        """Read the lines without their ends; a whole file is one line."""
        limit = MAX_DOCUMENT_BYTES + 1
        is_text = self.text_format == "text"
        mark = _BYTE_ORDER_MARK
        with open(self.name, "rb") as raw:
            stream: Any = raw
            if self.name.endswith(".gz"):
                if not self.size:
                    raise ValueError("not a complete gzip file: it is empty")
                stream = gzip.GzipFile(fileobj=cast(Any, raw))
            read, num_lines = stream.read if is_text else stream.readline, 0
            try:
                while line := read(limit):
                    rest = line  # of a line that parse_text refuses
                    while len(rest) == limit and (is_text or rest[-1:] != _END):
                        rest = read(limit)
                    if len(line) < limit:  # else it is refused as it is
                        line = line.removeprefix(mark)
                    mark = b""
                    if not num_lines and self._is_array(line):
                        raise ValueError(_ARRAY)
                    num_lines += 1
                    yield line if is_text else line.removesuffix(_END)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(
                    f"not a complete gzip file: {error}, at byte {raw.tell():,}"
                ) from error
            self._check_unchanged(os.fstat(raw.fileno()))


@dataclasses.dataclass(frozen=True)
class HubShard:
    """One data file of a dataset that Hugging Face ``datasets`` streams."""

    name: str  # of the file, for messages and the manifest
    origin: str  # text that changes when the dataset does
    dataset: tuple[str, str | None]  # its name, and that of its configuration
    index: int
    count: int  # of the dataset's shards
    text_field: str  # the one field that is kept

    text_format = "jsonl"

    def record(self) -> dict[str, Any]:
        return {"name": self.name, "format": "hub", "origin": self.origin}

    def lines(self) -> Iterator[bytes]:
        """Read each example as JSON."""
        whole = _builder(*self.dataset).as_streaming_dataset(split="train")
        count = 0
        try:
            for example in whole.shard(self.count, self.index):
                count += 1
                kept = {
                    k: v for k, v in example.items() if k == self.text_field
                }
                yield json.dumps(kept, default=lambda v: [repr(v)]).encode()
        except Exception as error:  # of any file system or file format
            raise ValueError(
                f"after example {count}: {type(error).__name__}: {error}"
            ) from error


Source = LocalFile | HubShard


def read_lines(source: Source) -> Iterator[tuple[str, bytes]]:
    """Yield the lines that are not white space, each after its place.

    A source that cannot be read to its end is refused by file and line.
    """
    number = 0
    try:
        for number, raw in enumerate(source.lines(), start=1):
            if raw and not raw.isspace():
                yield f"{source.name}, line {number}", raw
    except ValueError as error:
        raise ValueError(
            f"{source.name}, line {number + 1}: {error}"
        ) from error


def parse_text(line: bytes, text_format: str, name: str) -> str:
    """Return a line's document; in JSON it is the field with this name."""
    if len(line) > MAX_DOCUMENT_BYTES:
        raise ValueError(
            f"more than {MAX_DOCUMENT_BYTES:,} bytes cannot be one document: "
            "split it, or give another --format"
        )
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte {error.start + 1} ({line[error.start]:#04x}) is not UTF-8"
        ) from error
    if text_format != "jsonl":
        return text.removesuffix("\r") if text_format == "lines" else text
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"invalid JSON at column {error.colno}: {error.msg} in "
            f"{text!r:.40}: one JSON object a line is expected (--format lines "
            "reads a document a line)"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(
            f'not a JSON object: {text!r:.40}; write {{"{name}": ...}}'
        )
    if name not in value:
        fields = ", ".join(map(repr, value)) or "none"
        hint = f": give --text-field {next(iter(value))}" if value else ""
        raise ValueError(f"no field {name!r} (fields: {fields}){hint}")
    text = value[name]
    if not isinstance(text, str):
        raise ValueError(f"field {name!r} is no string: {text!r:.40}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start + 1} ({text[error.start]!r}) is half of "
            "a pair, which is no text"
        ) from error
    return text


def find_files(inputs: Sequence[str], text_format: str) -> list[LocalFile]:
    """Describe files, and the files below folders by name, in the given order.

    Hidden files (their name starts with a dot) in folders are left out.
    """
    paths: list[Path] = []
    for given in map(Path, inputs):
        found = [given]
        if given.is_dir():
            files = (path for path in given.rglob("*") if path.is_file())
            found = sorted(x for x in files if not x.name.startswith("."))
        if not found:
            raise FileNotFoundError(f"{given} has no files")
        paths += found
    return [_describe(path, text_format) for path in paths]


def _describe(path: Path, text_format: str) -> LocalFile:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    if text_format == "auto":
        ending = Path(path.stem if path.suffix == ".gz" else path).suffix
        if ending not in _FORMATS:
            raise ValueError(
                f"{path}: the ending says no format: give --format jsonl, "
                "lines or text (--format auto knows .jsonl, .json and .txt, "
                "with or without .gz)"
            )
        text_format = _FORMATS[ending]
    stat = path.stat()
    return LocalFile(str(path), text_format, stat.st_size, stat.st_mtime_ns)


def find_shards(
    name: str, configuration: str | None, text_field: str
) -> list[HubShard]:
    """Look up a dataset of the hub; one source for each data file."""
    builder = _builder(name, configuration)
    count = builder.as_streaming_dataset(split="train").num_shards
    names = [*map(str, (builder.config.data_files or {}).get("train", []))]
    if len(names) != count:
        names = [f"{name}, shard {index}" for index in range(count)]
    # config_id is a hash of the files' names and versions.
    origin = f"{builder.hash}, {builder.config_id}"
    dataset = name, configuration
    return [
        HubShard(file, f"{origin}: {file}", dataset, index, count, text_field)
        for index, file in enumerate(names)
    ]


def _builder(name: str, configuration: str | None) -> Any:
    from datasets import load_dataset_builder

    return load_dataset_builder(name, configuration)
