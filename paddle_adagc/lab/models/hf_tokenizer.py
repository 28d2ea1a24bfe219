# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizer files beside an exported decoder."""

from __future__ import annotations

import shutil
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from paddle_adagc.files import atomic_write_json
from paddle_adagc.lab.data.corpus import END_OF_DOCUMENT, VOCAB_SIZE

FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
"""What Hugging Face tokenizers consist of, as far as they have it."""

_END = chr(END_OF_DOCUMENT)


def byte_tokenizer() -> Tokenizer:
    """Tokens are the bytes of UTF-8, ids their values, 0 to 255.

    The byte 0, which the embedded corpus has after each document and text
    does not contain, is the special token of the end.
    """
    # ByteLevel writes a byte as a printable character of its own choice.
    letters = _byte_letters()
    vocabulary = {letter: byte for byte, letter in enumerate(letters)}
    del vocabulary[letters[END_OF_DOCUMENT]]
    vocabulary[_END] = END_OF_DOCUMENT
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(_END, special=True, normalized=False)]
    )
    return tokenizer


def write_byte_tokenizer(directory: Path, max_length: int) -> None:
    """Write `byte_tokenizer` so that transformers' AutoTokenizer loads it.

    Args:
        directory: Folder to write to.
        max_length: Tokens that the model has positions for.
    """
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    atomic_write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "eos_token": _END,
            "pad_token": _END,
            "clean_up_tokenization_spaces": False,
        },
    )


def copy_tokenizer(source: Path, directory: Path) -> bool:
    """Copy the tokenizer files of a directory.

    Returns:
        Whether there was a tokenizer.
    """
    present = [source / name for name in FILES if (source / name).exists()]
    for path in present:
        shutil.copyfile(path, directory / path.name)
    return any(path.stem == "tokenizer" for path in present)


def _byte_letters() -> list[str]:
    """Return the character by which ByteLevel writes each byte.

    Printable bytes of Latin-1 stand for themselves; the others, in their
    order, are the characters from U+0100 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(VOCAB_SIZE) if byte not in printable]
    return [
        chr(byte) if byte in printable else chr(256 + others.index(byte))
        for byte in range(VOCAB_SIZE)
    ]
