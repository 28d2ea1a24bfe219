# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One source to a part of a dataset: its tokens, and the documents' sizes."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from paddle_adagc.files import sync, temporary_path
from paddle_adagc.lab.data.config import PrepareConfig
from paddle_adagc.lab.data.indexed import token_dtype
from paddle_adagc.lab.data.sources import Source, read_lines
from paddle_adagc.lab.data.tokenizers import Tokenizer

SPLITS = ("train", "validation")
COUNTS = ("num_text_bytes", "num_empty", "num_bad")

_BATCH = 200
"""Lines that are encoded at a time; bounds a worker's memory."""

MAX_MESSAGES = 10
"""Messages about bad documents that the manifest keeps."""


def tokens_path(part: Path, split: str) -> Path:
    """File with a part's tokens of one split, each document with its end."""
    return part.with_suffix(f".{split}")


def read_part(part: Path, num_bytes: int) -> dict[str, np.ndarray]:
    """Read a part: sizes int32 ``[num_documents]`` by split, counts, faults.

    A token has ``num_bytes``.
    """
    try:
        with np.load(part) as file:
            found = dict(file)
        for split in SPLITS:
            size = tokens_path(part, split).stat().st_size
            if size != found[split].sum(dtype=np.int64) * num_bytes:
                raise ValueError(f"{split} has {size:,} bytes")
    except (EOFError, MemoryError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{part.parent} is damaged ({part.stem}): remove it and run again"
        ) from error
    return found


def write_part(
    source: Source, part: Path, tokenizer: Tokenizer, config: PrepareConfig
) -> None:
    """Encode a source; the file ``part`` appears once all is written."""
    sizes: dict[str, list[int]] = {split: [] for split in SPLITS}
    num_bytes = num_empty = 0
    faults: list[str] = []
    threshold = int(config.validation_fraction * 2**64)
    end = np.array([tokenizer.eos_id], token_dtype(tokenizer.vocab_size))
    with contextlib.ExitStack() as stack:
        files = {
            split: stack.enter_context(tokens_path(part, split).open("wb"))
            for split in SPLITS
        }
        for text, tokens in _documents(source, tokenizer, config, faults):
            if not len(tokens):
                num_empty += 1
                continue
            head = hashlib.sha256(text).digest()[:8]
            split = SPLITS[int.from_bytes(head, "big") < threshold]
            files[split].write(tokens.tobytes() + end.tobytes())
            sizes[split].append(len(tokens) + 1)
            num_bytes += len(text)
    for split in SPLITS:
        sync(tokens_path(part, split))
    with temporary_path(part) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            counts=np.array([num_bytes, num_empty, len(faults)]),
            faults=np.array(faults[:MAX_MESSAGES], str),
            **{k: np.array(v, np.int32) for k, v in sizes.items()},
        )


def _documents(
    source: Source,
    tokenizer: Tokenizer,
    config: PrepareConfig,
    faults: list[str],
) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield the good documents, UTF-8 and tokens.

    Faults of the others are added; with ``on_error="stop"`` the first one is
    raised. They name file and line.
    """

    def refuse(place: str, fault: object) -> None:
        if config.on_error == "stop":
            raise ValueError(f"{place}: {fault}")
        faults.append(f"{place}: {fault}")

    lines, encode = read_lines(source), tokenizer.load()
    while batch := [*itertools.islice(lines, _BATCH)]:
        texts = {}
        for place, line in batch:
            try:
                texts[place] = _text(line, source.text_format, config)
            except (ValueError, RecursionError) as error:
                refuse(place, error)
        encoded = encode([*texts.values()])
        for place, tokens in zip(texts, encoded, strict=True):
            text = texts[place]
            if (tokens == tokenizer.eos_id).any():
                start = f"the document {text[:60]!r}"
                refuse(place, f"{start} holds the token that ends a document")
            else:
                yield text.encode(), tokens


def _text(line: bytes, text_format: str, config: PrepareConfig) -> str:
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
            f"invalid JSON at column {error.colno}: {error.msg}"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {value!r:.40}")
    name = config.text_field
    if name not in value:
        fields = ", ".join(map(repr, value)) or "none"
        raise ValueError(f"no field {name!r} (fields: {fields})")
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
