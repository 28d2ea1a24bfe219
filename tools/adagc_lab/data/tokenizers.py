# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers by name: bytes, Hugging Face ``tokenizers``, SentencePiece.

For corpora and single texts (:class:`Tokenizer`), for captions
(:class:`CaptionTokenizer`), and as files beside a decoder.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from adagc_lab.data.corpus import END_OF_DOCUMENT, VOCAB_SIZE
from adagc_lab.data.indexed import manifest_tokenizer, token_dtype
from paddle_adagc.files import atomic_write_json

BYTES: Final = "bytes"

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

_KINDS = {".json": "huggingface", ".model": "sentencepiece"}
_END = chr(END_OF_DOCUMENT)


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A tokenizer's file, read once: every process uses the same bytes."""

    kind: str  # "bytes", "huggingface" or "sentencepiece"
    content: bytes  # of the file; empty for bytes
    vocab_size: int  # largest token id plus 1
    eos_id: int  # token after each document

    def identity(self) -> dict[str, Any]:
        """Return everything that the tokens depend on, for the manifest."""
        return {
            "kind": self.kind,
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "vocab_size": self.vocab_size,
            "eos_id": self.eos_id,
        }

    def library_version(self) -> str:
        """Version of the library that tokenises, or ``""``."""
        if self.kind == BYTES:
            return ""
        return version(
            "tokenizers" if self.kind == "huggingface" else self.kind
        )

    @functools.cached_property
    def model(self) -> Any:
        """The library's tokenizer, for texts of tokens."""
        if self.kind == BYTES:
            return byte_tokenizer()
        return _load(self.kind, self.content)

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """Text of tokens, with or without the special ones'."""
        if self.kind == "sentencepiece":
            return self.model.decode([*tokens])
        return self.model.decode([*tokens], skip_special_tokens=not special)

    def load(self) -> Callable[[Sequence[str]], list[np.ndarray]]:
        """Make the function from texts to tokens of :func:`.token_dtype`."""
        dtype = token_dtype(self.vocab_size)
        if self.kind == BYTES:
            return lambda texts: [
                np.frombuffer(text.encode(), np.uint8).astype(dtype)
                for text in texts
            ]
        model = _load(self.kind, self.content)
        if self.kind == "sentencepiece":
            return lambda texts: [
                np.array(ids, dtype)
                for ids in model.encode(list(texts), num_threads=1)
            ]
        model.encode_special_tokens = True  # a text that spells one is text
        return lambda texts: [
            np.array(encoding.ids, dtype)
            for encoding in model.encode_batch_fast(
                list(texts), add_special_tokens=False
            )
        ]


def _load(kind: str, content: bytes) -> Any:
    if kind == "sentencepiece":
        from sentencepiece import SentencePieceProcessor

        return SentencePieceProcessor(model_proto=content)
    model = tokenizers.Tokenizer.from_buffer(content)
    model.no_truncation()  # files often cut or pad
    model.no_padding()
    return model


def find_tokenizer(
    name: str, eos_token: str | None = None, eos_id: int | None = None
) -> Tokenizer:
    """Read the tokenizer ``name``; see ``PrepareConfig.tokenizer``.

    ``eos_id``, from the data's manifest, goes before ``eos_token``; without
    both the tokenizer says what ends a document.
    """
    if name == BYTES:
        if eos_token is not None:
            raise ValueError(
                f"eos_token is {eos_token!r}: bytes end a document with the "
                f"token {END_OF_DOCUMENT}"
            )
        return Tokenizer(BYTES, b"", VOCAB_SIZE, END_OF_DOCUMENT)
    path = _find_file(name)
    kind, content = _KINDS[path.suffix], path.read_bytes()
    try:
        model = _load(kind, content)
    except Exception as error:  # the libraries raise Exception itself
        raise ValueError(f"{path} is no {kind} tokenizer: {error}") from error
    if kind == "huggingface":
        vocabulary = model.get_vocab(with_added_tokens=True)
        token = eos_token or _end_beside(path)
    else:
        pieces = model.id_to_piece([*range(model.vocab_size())])
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        end = model.eos_id()
        token = eos_token or (pieces[end] if end >= 0 else None)
    if eos_id is None:
        if token is None:
            raise ValueError(
                f"{path} does not say which token ends a document: give "
                "--eos-token, or put tokenizer_config.json beside it"
            )
        eos_id = vocabulary.get(token)
        if eos_id is None:
            raise ValueError(f"eos_token {token!r} is not in {path}")
    return Tokenizer(kind, content, max(vocabulary.values()) + 1, eos_id)


def _find_file(name: str) -> Path:
    """Return a tokenizer's file; download it where ``name`` is no path."""
    path = Path(name)
    if not path.exists() and path.suffix not in _KINDS and name.count("/") < 2:
        path = _download(name)
    if path.is_dir():
        present = [path / x for x in FILES[:2] if (path / x).is_file()]
        if not present:
            raise FileNotFoundError(
                f"{name} has neither tokenizer.json nor tokenizer.model"
            )
        path = present[0]
    if not path.is_file():
        raise FileNotFoundError(f"{name} is not a file")
    if path.suffix not in _KINDS:
        raise ValueError(
            f"tokenizer is {name!r}: give a tokenizer.json or a SentencePiece "
            ".model"
        )
    return path


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name, allow_patterns=["tokenizer*", "special_tokens_map.json"]
        )
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise FileNotFoundError(
            f"tokenizer is {name!r}: neither 'bytes' nor a path, and the "
            f"Hugging Face hub does not give it: {reason}"
        ) from error
    return Path(folder)


def _end_beside(path: Path) -> str | None:
    """Return what Hugging Face's files in the same folder call the end."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = path.with_name(name)
        if file.is_file():
            try:
                values = json.loads(file.read_text("utf-8"))
            except (RecursionError, ValueError) as error:
                raise ValueError(f"{file} is not JSON: {error}") from error
            if not isinstance(values, dict):
                raise ValueError(f"{file} holds no map of names to values")
            token = values.get("eos_token")
            if isinstance(token, dict):
                token = token.get("content")
            if token:
                return token
    return None


def is_bytes(kind: str | None, prefix: str | None) -> bool:
    """Tell whether the tokens of a run's data are bytes, by its config."""
    if kind in ("stdlib", "fixed_sequences"):  # the embedded corpus
        return True
    return manifest_tokenizer(prefix).get("kind") == BYTES


class CaptionTokenizer:
    """CLIP's captions, as rows of ``context_length`` tokens.

    ``path`` is that of CLIP's ``tokenizer.json``.
    """

    def __init__(
        self, path: str | os.PathLike[str], context_length: int
    ) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(
                f"there is no tokenizer {path}: data.tokenizer names CLIP's "
                "tokenizer.json"
            )
        try:
            self._model = _load("huggingface", Path(path).read_bytes())
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"{path} is no tokenizer: {error}") from error
        self._model.enable_truncation(context_length)
        self._model.enable_padding(length=context_length, pad_id=0)
        self.vocab_size = self._model.get_vocab_size()
        ends = self._model.encode("").ids
        names = "<|startoftext|>", "<|endoftext|>"
        if ends[:2] != [self._model.token_to_id(name) for name in names]:
            raise ValueError(
                f"{path} does not put captions between {' and '.join(names)}: "
                "give CLIP's"
            )
        self.end_token = ends[1]

    def __call__(self, caption: str) -> np.ndarray:
        """Tokens from start to end, cut off or padded with 0, as int64."""
        return np.array(self._model.encode(caption).ids, np.int64)


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


def write_tokenizer(
    name: str, directory: Path, tokenizer: Tokenizer, max_length: int
) -> None:
    """Write a tokenizer's files so that transformers' AutoTokenizer loads it.

    ``tokenizer`` is what :func:`find_tokenizer` found by the ``name``, and
    ``max_length`` the tokens that the model has positions for.
    """
    path = Path(name)
    if tokenizer.kind == BYTES:
        byte_tokenizer().save(str(directory / "tokenizer.json"))
        options = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "eos_token": _END,
            "pad_token": _END,
            "clean_up_tokenization_spaces": False,
        }
        atomic_write_json(directory / "tokenizer_config.json", options)
    elif path.is_dir():
        copy_tokenizer(path, directory)
    elif tokenizer.kind == "huggingface":
        copy_tokenizer(path.parent, directory)
        shutil.copyfile(path, directory / "tokenizer.json")
    else:
        pieces = tokenizer.model
        if pieces.decode(pieces.encode("a  b")) != "a  b":
            warnings.warn(
                f"{path} changes white space, which transformers' "
                "LlamaTokenizer does not: there some texts have other tokens",
                stacklevel=3,
            )
        shutil.copyfile(path, directory / "tokenizer.model")
        options = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}
        atomic_write_json(directory / "tokenizer_config.json", options)


def copy_tokenizer(source: Path, directory: Path) -> bool:
    """Copy the tokenizer files of a directory; tells if it had a tokenizer."""
    present = [source / name for name in FILES if (source / name).exists()]
    for path in present:
        shutil.copyfile(path, directory / path.name)
    return any(path.stem == "tokenizer" for path in present)
