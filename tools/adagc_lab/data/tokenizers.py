# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers by name: bytes, a ``tokenizer.json``, SentencePiece."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from adagc_lab.data.corpus import END_OF_DOCUMENT, VOCAB_SIZE

BYTES = "bytes"
_END = chr(END_OF_DOCUMENT)


class Tokenizer(NamedTuple):
    """What a corpus is tokenised by."""

    encode: Callable[[Sequence[str]], Sequence[Sequence[int]]]
    vocab_size: int  # largest token id plus 1
    eos_id: int  # token after each document


def find_tokenizer(name: str, eos_token: str | None = None) -> Tokenizer:
    """Read the tokenizer ``name``.

    ``"bytes"``; a ``tokenizer.json`` or a SentencePiece ``.model``; a folder
    with one of them; or the name of a model on the Hugging Face hub. Without
    ``eos_token`` the tokenizer, or the ``tokenizer_config.json`` beside it,
    says what ends a document.
    """
    if name == BYTES:
        return Tokenizer(
            lambda texts: [text.encode() for text in texts],
            VOCAB_SIZE,
            END_OF_DOCUMENT,
        )
    path = _find_file(name)
    if path.suffix == ".model":
        from sentencepiece import SentencePieceProcessor

        model = SentencePieceProcessor(model_file=str(path))
        size, end = model.vocab_size(), model.eos_id()
        if eos_token is not None:
            end = model.piece_to_id(eos_token)
        encode: Any = model.encode
    else:
        model = tokenizers.Tokenizer.from_file(str(path))
        model.no_truncation()  # files often cut or pad
        model.no_padding()
        model.encode_special_tokens = True  # a text that spells one is text
        vocabulary = model.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values()) + 1
        end = vocabulary.get(eos_token or _end_beside(path), -1)

        def encode_all(texts: Sequence[str]) -> Sequence[Sequence[int]]:
            found = model.encode_batch_fast(
                list(texts), add_special_tokens=False
            )
            return [encoding.ids for encoding in found]

        encode = encode_all

    if end < 0:
        raise ValueError(
            f"{path} does not say which token ends a document: give "
            "--eos-token, or put tokenizer_config.json beside it"
        )
    return Tokenizer(encode, size, end)


def _find_file(name: str) -> Path:
    """Return a tokenizer's file; download it where ``name`` is no path."""
    path = Path(name)
    if not path.exists() and not path.suffix and name.count("/") < 2:
        from huggingface_hub import snapshot_download

        path = Path(snapshot_download(name, allow_patterns=["tokenizer*"]))
    if path.is_dir():
        files = [path / "tokenizer.json", path / "tokenizer.model"]
        path = next(filter(Path.is_file, files), files[0])
    if not path.is_file() or path.suffix not in (".json", ".model"):
        raise FileNotFoundError(
            f"tokenizer is {name!r}: there is no tokenizer.json and no "
            "SentencePiece .model"
        )
    return path


def _end_beside(path: Path) -> str:
    """Return what Hugging Face's file in the same folder calls the end."""
    file = path.with_name("tokenizer_config.json")
    values = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    token = values.get("eos_token") or ""
    return token["content"] if isinstance(token, dict) else token


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Tokens are the bytes of UTF-8, ids their values, 0 to 255.

    The byte 0, which the embedded corpus has after each document and text
    does not contain, is the special token of the end.
    """
    # ByteLevel writes a byte as a printable character: Latin-1's stand for
    # themselves, the other bytes, in their order, are those from U+0100 on.
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    others = (b for b in range(VOCAB_SIZE) if chr(b) not in characters)
    vocabulary = {
        character: ord(character) if ord(character) < 256 else next(others)
        for character in characters
    }
    vocabulary = {k: v for k, v in vocabulary.items() if v != END_OF_DOCUMENT}
    vocabulary[_END] = END_OF_DOCUMENT
    model = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    model.decoder = decoders.ByteLevel()
    end = tokenizers.AddedToken(_END, special=True, normalized=False)
    model.add_special_tokens([end])
    return model
