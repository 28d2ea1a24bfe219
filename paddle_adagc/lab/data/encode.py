# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lines to documents to tokens, a batch at a time, in any process."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from paddle_adagc.lab.data.indexed import token_dtype
from paddle_adagc.lab.data.sources import Source
from paddle_adagc.lab.data.tokenizers import Encode, Tokenizer


def token_schema(vocab_size: int) -> pa.Schema:
    """Columns of :meth:`Encoder.__call__`, a row for each line."""
    tokens = pa.from_numpy_dtype(token_dtype(vocab_size))
    return pa.schema(
        {
            "tokens": pa.list_(tokens),  # with the end token; empty: left out
            "is_held_out": pa.bool_(),
            "num_bytes": pa.int64(),  # UTF-8 bytes of the document
            "fault": pa.string(),  # why the document is bad
        }
    )


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


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Makes tokens of lines; pickled to the workers."""

    tokenizer: Tokenizer
    text_field: str
    validation_fraction: float
    on_error: Literal["stop", "skip"]

    def __call__(
        self, lines: Sequence[tuple[str, bytes]], source: Source
    ) -> pa.Table:
        """Encode lines of :func:`read_lines` to rows of :func:`token_schema`.

        With ``on_error="stop"`` a bad document is refused by file and line.
        """
        texts: list[str] = []
        faults: list[str | None] = []
        for place, raw in lines:
            text, fault = "", None
            try:
                text = self._read(raw, source.text_format)
            except (ValueError, RecursionError) as error:
                fault = f"{place}: {error}"
            texts.append(text)
            faults.append(fault)
        tokens, sizes = _load(self.tokenizer)(texts)
        ends = np.add.reduceat(
            tokens == self.tokenizer.eos_id, np.cumsum(sizes) - sizes
        )
        for index in np.flatnonzero(ends > 1):
            faults[index] = (
                f"{lines[index][0]}: the document {texts[index][:60]!r} holds "
                "the token that ends a document"
            )
            texts[index] = ""
        bad = [fault for fault in faults if fault is not None]
        if bad and self.on_error == "stop":
            raise ValueError(bad[0])
        encoded = [text.encode() for text in texts]
        is_kept = np.array([len(text) > 0 for text in encoded]) & (sizes > 1)
        offsets = np.concatenate([[0], np.cumsum(np.where(is_kept, sizes, 0))])
        columns = [
            pa.ListArray.from_arrays(
                pa.array(offsets, pa.int32()),
                pa.array(tokens[np.repeat(is_kept, sizes)]),
            ),
            pa.array([self._is_held_out(text) for text in encoded]),
            pa.array([len(text) for text in encoded], pa.int64()),
            pa.array(faults, pa.string()),
        ]
        schema = token_schema(self.tokenizer.vocab_size)
        return pa.Table.from_arrays(columns, schema=schema)

    def _is_held_out(self, text: bytes) -> bool:
        head = hashlib.sha256(text).digest()[:8]
        threshold = int(self.validation_fraction * 2**64)
        return int.from_bytes(head, "big") < threshold

    def _read(self, line: bytes, text_format: str) -> str:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"byte {error.start + 1} ({line[error.start]:#04x}) is not "
                "UTF-8"
            ) from error
        if text_format == "lines":
            text = text.removesuffix("\r")
        elif text_format == "jsonl":
            text = _text_of(text, self.text_field)
        reserved = self.tokenizer.reserved
        if reserved is not None and reserved in text:
            raise ValueError(
                f"character {text.index(reserved) + 1} is {reserved!r}, the "
                "token that ends a document"
            )
        return text


@functools.lru_cache(maxsize=1)
def _load(tokenizer: Tokenizer) -> Encode:
    return tokenizer.load()


def _text_of(line: str, text_field: str) -> str:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"invalid JSON at column {error.colno}: {error.msg}"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {_shorten(value)}")
    if text_field not in value:
        fields = ", ".join(map(repr, value)) or "none"
        raise ValueError(f"no field {text_field!r} (fields: {fields})")
    text = value[text_field]
    if not isinstance(text, str):
        raise ValueError(f"field {text_field!r} is no string: {_shorten(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start + 1} ({text[error.start]!r}) is half of "
            "a pair, which is no text"
        ) from error
    return text


def _shorten(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
