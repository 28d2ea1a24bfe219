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


def read_part(part: Path) -> dict[str, np.ndarray]:
    """Read a part: sizes int32 ``[num_documents]`` by split, counts, faults."""
    try:
        with np.load(part) as file:
            return dict(file)
    except (EOFError, MemoryError, ValueError, zipfile.BadZipFile) as error:
        raise damaged(part) from error


def damaged(part: Path) -> ValueError:
    """Error about a part that is not as it was written."""
    return ValueError(
        f"{part.parent} is damaged ({part.stem}): remove it and run again"
    )


def write_part(
    source: Source, part: Path, tokenizer: Tokenizer, config: PrepareConfig
) -> None:
    """Encode a source; the file ``part`` appears once all is written.

    With ``on_error="stop"`` a bad document is refused by file and line.
    """
    sizes: dict[str, list[int]] = {split: [] for split in SPLITS}
    num_bytes = num_empty = 0
    faults: list[str] = []
    threshold = int(config.validation_fraction * 2**64)
    with contextlib.ExitStack() as stack:
        files = {
            split: stack.enter_context(tokens_path(part, split).open("wb"))
            for split in SPLITS
        }
        for text, tokens, fault in _documents(source, tokenizer, config):
            if fault is not None:
                if config.on_error == "stop":
                    raise ValueError(fault)
                faults.append(fault)
            elif not text or not len(tokens):
                num_empty += 1
            else:
                head = hashlib.sha256(text).digest()[:8]
                split = SPLITS[int.from_bytes(head, "big") < threshold]
                end = np.array([tokenizer.eos_id], tokens.dtype)
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
    source: Source, tokenizer: Tokenizer, config: PrepareConfig
) -> Iterator[tuple[bytes, np.ndarray, str | None]]:
    """Yield a source's documents: UTF-8, tokens, and what is wrong."""
    lines, encode = read_lines(source), tokenizer.load()
    while batch := [*itertools.islice(lines, _BATCH)]:
        texts: list[str] = []
        faults: list[str | None] = []
        for _, line in batch:
            text, fault = "", None
            try:
                text = _text(line, source.text_format, config.text_field)
            except (ValueError, RecursionError) as error:
                fault = str(error)
            texts.append(text)
            faults.append(fault)
        for (place, _), text, tokens, fault in zip(
            batch, texts, encode(texts), faults, strict=True
        ):
            if (tokens == tokenizer.eos_id).any():
                fault = (
                    f"the document {text[:60]!r} holds the token that ends a "
                    "document"
                )
            yield text.encode(), tokens, fault and f"{place}: {fault}"


def _text(line: bytes, text_format: str, text_field: str) -> str:
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
    if text_field not in value:
        fields = ", ".join(map(repr, value)) or "none"
        raise ValueError(f"no field {text_field!r} (fields: {fields})")
    text = value[text_field]
    if not isinstance(text, str):
        raise ValueError(f"field {text_field!r} is no string: {text!r:.40}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start + 1} ({text[error.start]!r}) is half of "
            "a pair, which is no text"
        ) from error
    return text
