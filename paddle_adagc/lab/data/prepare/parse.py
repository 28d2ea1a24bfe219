# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chunks of a source to documents, bad ones by file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator

from paddle_adagc.lab.data.prepare.chunks import Chunk


def read_documents(
    chunk: Chunk, text_field: str, reserved: str | None
) -> Iterator[str | ValueError]:
    """Read the documents of a chunk; lines of white space are skipped.

    Args:
        chunk: Whole lines.
        text_field: Field of the JSON objects that holds the text.
        reserved: Character that no document may contain; None: none.

    Yields:
        A document, or an error that names its file and line.
    """
    first = chunk.block.first_line
    if chunk.text_format == "text":
        lines = [chunk.block.payload]
    else:
        lines = chunk.block.payload.split(b"\n")
    for number, line in enumerate(lines, start=first):
        if not line or line.isspace():
            continue
        try:
            text = _read_line(line, chunk.text_format, text_field)
            if reserved is not None and reserved in text:
                raise ValueError(
                    f"character {text.index(reserved) + 1} is {reserved!r}, "
                    "the token that ends a document"
                )
            yield text
        except (ValueError, RecursionError) as error:
            yield ValueError(f"{chunk.name}, line {number}: {error}")


def _read_line(line: bytes, text_format: str, text_field: str) -> str:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte {error.start + 1} ({line[error.start]:#04x}) is not UTF-8"
        ) from error
    if text_format == "text":
        return text
    if text_format == "lines":
        return text.removesuffix("\r")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"invalid JSON at column {error.colno}: {error.msg}"
        ) from error
    return _text_of(value, text_field)


def _text_of(value: object, text_field: str) -> str:
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {_shorten(value)}")
    if text_field not in value:
        fields = ", ".join(map(repr, value)) or "none"
        raise ValueError(f"no field {text_field!r} (fields: {fields})")
    text = value[text_field]
    if not isinstance(text, str):
        raise ValueError(f"field {text_field!r} is no string: {_shorten(text)}")
    if not text.isascii():
        _refuse_surrogates(text)
    return text


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start + 1} ({text[error.start]!r}) is half of "
            "a pair, which is no text"
        ) from error


def _shorten(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
