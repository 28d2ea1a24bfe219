# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a saved decoder: which one, its files, text to tokens."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer as TokenizerModel

from paddle_adagc.files import atomic_write_json
from paddle_adagc.lab.data.prepare.tokenizer import find_tokenizer
from paddle_adagc.lab.evaluate.saved import SavedDecoder
from paddle_adagc.lab.models.hf_files import (
    TOKENIZER_FILES,
    byte_tokenizer,
    copy_tokenizer,
    read_json,
    write_byte_tokenizer,
)

BYTES = "bytes"
BYTE_KINDS = ("stdlib", "fixed_sequences")  # the embedded corpus


def tokenizer_of(saved: SavedDecoder, given: str | None = None) -> str | None:
    """Return the name of the tokenizer that the decoder was trained with.

    Args:
        saved: The decoder.
        given: Taken if it is not None: `"bytes"`, a `tokenizer.json`, a
            SentencePiece `.model`, or a folder with one of them.

    Returns:
        Such a name; None if nothing says what the tokens are.

    Raises:
        FileNotFoundError: There is no tokenizer `given`.
        ValueError: The data's manifest names another tokenizer.
    """
    expected = _manifest_tokenizer(saved)
    if given is not None:
        eos_id = document_end(saved)
        found = find_tokenizer(given, eos_id=eos_id).identity()
        if expected and found["sha256"] != expected["sha256"]:
            raise ValueError(
                f"tokenizer {given!r} is not the one that the data was made "
                f"with: its SHA-256 is {found['sha256']}, the manifest has "
                f"{expected['sha256']}"
            )
        return given
    if any((saved.directory / name).exists() for name in TOKENIZER_FILES[:2]):
        return str(saved.directory)
    if expected and expected["kind"] == BYTES:
        return BYTES
    return BYTES if _data(saved).get("kind") in BYTE_KINDS else None


def _data(saved: SavedDecoder) -> dict[str, Any]:
    return saved.run.get("config", {}).get("data", {})


def document_end(saved: SavedDecoder) -> int | None:
    """Id of the token after each document of the decoder's data, if known."""
    return _manifest_tokenizer(saved).get("eos_id")


def _manifest_tokenizer(saved: SavedDecoder) -> dict[str, Any]:
    """Return the tokenizer's entry in the data's manifest, or nothing."""
    prefix = _data(saved).get("prefix")
    manifest = Path(f"{prefix}.manifest.json")
    if prefix is None or not manifest.exists():
        return {}
    return read_json(manifest)["tokenizer"]


def write_tokenizer(name: str, directory: Path, saved: SavedDecoder) -> int:
    """Write a tokenizer's files beside the exported weights.

    Args:
        name: See :func:`tokenizer_of`.
        directory: Folder to write to.
        saved: Decoder that the tokenizer belongs to.

    Returns:
        Id of the token that ends a document.

    Raises:
        FileNotFoundError: There is no such tokenizer.
        ValueError: The decoder's vocabulary is smaller.
    """
    tokenizer = find_tokenizer(name, eos_id=document_end(saved))
    if tokenizer.vocab_size > saved.config.vocab_size:
        raise ValueError(
            f"tokenizer {name!r} has {tokenizer.vocab_size} tokens, the model "
            f"{saved.config.vocab_size}: give the one it was trained with"
        )
    path = Path(name)
    if tokenizer.kind == "bytes":
        write_byte_tokenizer(directory, saved.config.max_position_embeddings)
    elif path.is_dir():
        copy_tokenizer(path, directory)
    elif tokenizer.kind == "huggingface":
        copy_tokenizer(path.parent, directory)
        shutil.copyfile(path, directory / "tokenizer.json")
    else:
        _warn_of_normalisation(path)
        shutil.copyfile(path, directory / "tokenizer.model")
        atomic_write_json(
            directory / "tokenizer_config.json",
            {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False},
        )
    return tokenizer.eos_id


def _warn_of_normalisation(path: Path) -> None:
    pieces = SentencePieceProcessor(model_file=str(path))
    if pieces.decode(pieces.encode("a  b")) != "a  b":
        warnings.warn(
            f"{path} changes white space, which transformers' LlamaTokenizer "
            "does not: there some texts have other tokens",
            stacklevel=3,
        )


class TextTokenizer:
    """Text to tokens and back.

    Args:
        name: See :func:`tokenizer_of`.
        adds_special_tokens: Let the tokenizer put what it has for that, a
            token of the beginning for most, before a text. Off for what is
            trained here: tools/prepare_data.py writes no such tokens.
        eos_id: Token that ends a document; None: what the tokenizer says.

    Attributes:
        eos_id: Token that ends a document.
        prefix_id: Token to begin with where there is no context.

    Raises:
        FileNotFoundError: There is no such tokenizer.
        ValueError: It is broken.
    """

    def __init__(
        self,
        name: str,
        adds_special_tokens: bool = False,
        eos_id: int | None = None,
    ) -> None:
        found = find_tokenizer(name, eos_id=eos_id)
        self.name = name
        self.eos_id = found.eos_id
        self.adds_special_tokens = adds_special_tokens
        self._pieces: SentencePieceProcessor | None = None
        self._model = byte_tokenizer()
        bos: str | None = None
        if found.kind == "sentencepiece":
            self._pieces = SentencePieceProcessor(model_proto=found.content)
            if self._pieces.bos_id() >= 0:
                bos = self._pieces.id_to_piece(self._pieces.bos_id())
        elif found.kind == "huggingface":
            self._model = TokenizerModel.from_buffer(found.content)
            self._model.no_truncation()
            self._model.no_padding()
            bos = _bos_token(Path(name))
        self._bos = bos if adds_special_tokens else None
        self.prefix_id = self.eos_id
        if self._bos is not None:
            self.prefix_id = self._id_of(self._bos)

    def _id_of(self, token: str) -> int:
        if self._pieces is not None:
            return int(self._pieces.piece_to_id(token))
        index = self._model.token_to_id(token)
        if index is None:
            warnings.warn(f"{self.name} has no token {token!r}", stacklevel=3)
            return self.eos_id
        return index

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Tokens of a text.

        Args:
            text: Any text.
            special: Instead of `adds_special_tokens`.
        """
        adds = self.adds_special_tokens if special is None else special
        if self._bos is not None and text.startswith(self._bos):
            adds = False
        if self._pieces is not None:
            tokens = self._pieces.encode(text)
            return [self.prefix_id, *tokens] if adds and self._bos else tokens
        return self._model.encode(text, add_special_tokens=adds).ids

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """Text of tokens, with or without the special ones'."""
        if self._pieces is not None:
            return self._pieces.decode([*tokens])
        return self._model.decode([*tokens], skip_special_tokens=not special)


def _bos_token(path: Path) -> str | None:
    """`bos_token` of the Hugging Face files in the tokenizer's folder."""
    folder = path if path.is_dir() else path.parent
    config = folder / "tokenizer_config.json"
    token = read_json(config).get("bos_token") if config.exists() else None
    return token["content"] if isinstance(token, dict) else token
