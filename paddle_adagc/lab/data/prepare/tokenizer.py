# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers by name: bytes, Hugging Face ``tokenizers``, SentencePiece."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paddle_adagc.lab.data import corpus
from paddle_adagc.lab.data.index_format import token_dtype

Encode = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]
"""Documents to tokens ``[num_tokens]`` of the file's dtype, each document
followed by the end token, and sizes int32 ``[num_documents]``."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A tokenizer's file, read once: every process uses the same bytes."""

    kind: Literal["bytes", "huggingface", "sentencepiece"]
    content: bytes
    """The ``tokenizer.json`` or ``.model``; empty for bytes."""

    vocab_size: int
    """Largest token id plus 1."""

    eos_id: int
    """Token after each document."""

    @property
    def reserved(self) -> str | None:
        """Character that is read as the end token; None: there is none."""
        return chr(self.eos_id) if self.kind == "bytes" else None

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
        package = {
            "huggingface": "tokenizers",
            "sentencepiece": "sentencepiece",
        }.get(self.kind)
        return version(package) if package else ""

    def load(self) -> Encode:
        """Make the function that tokenises in the process that calls this."""
        if self.kind == "bytes":
            return _encode_bytes
        if self.kind == "huggingface":
            model = _load_huggingface(self.content)
            return functools.partial(
                _encode_huggingface, model, self.eos_id, self.vocab_size
            )
        processor = _load_sentencepiece(self.content)
        return functools.partial(
            _encode_sentencepiece, processor, self.eos_id, self.vocab_size
        )


def find_tokenizer(
    name: str, eos_token: str | None = None, eos_id: int | None = None
) -> Tokenizer:
    """Read the tokenizer ``name``; see ``PrepareConfig.tokenizer``.

    Args:
        name: ``"bytes"``, a path, or a model of the hub.
        eos_token: Token after each document; None: what the tokenizer says.
        eos_id: Id of the token that ends a document, instead of `eos_token`;
            from the manifest of the tokenizer's data.

    Raises:
        FileNotFoundError: Neither a path nor a model on the hub.
        ValueError: Not a tokenizer, or ``eos_token`` is missing or unknown.
        OSError: The hub cannot be reached.
    """
    if name == "bytes":
        if eos_token is not None:
            raise ValueError(
                f"eos_token is {eos_token!r}: bytes end a document with the "
                f"token {corpus.END_OF_DOCUMENT}"
            )
        return Tokenizer(
            "bytes", b"", corpus.VOCAB_SIZE, corpus.END_OF_DOCUMENT
        )
    path = _find_file(name)
    if path.suffix == ".json":
        return _read_huggingface(path, eos_token, eos_id)
    return _read_sentencepiece(path, eos_token, eos_id)


def _find_file(name: str) -> Path:
    path = Path(name)
    if path.is_dir():
        for file in ("tokenizer.json", "tokenizer.model"):
            if (path / file).is_file():
                return path / file
        raise FileNotFoundError(
            f"{name} has neither tokenizer.json nor tokenizer.model"
        )
    if path.is_file():
        if path.suffix not in (".json", ".model"):
            raise ValueError(
                f"tokenizer is {name!r}: give a tokenizer.json or a "
                "SentencePiece .model"
            )
        return path
    if path.suffix in (".json", ".model") or name.count("/") > 1:
        raise FileNotFoundError(f"{name} is not a file")
    return _download(name)


def _download(name: str) -> Path:
    """Fetch a model's tokenizer files from the hub, into its cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        folder = snapshot_download(
            name, allow_patterns=["tokenizer*", "special_tokens_map.json"]
        )
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise FileNotFoundError(
            f"{_unknown(name)} nor a model on the Hugging Face hub"
        ) from error
    except OSError as error:
        reason = str(error).partition("\n")[0]
        raise OSError(
            f"{_unknown(name)}, and no model of the Hugging Face hub could be "
            f"had: {reason}"
        ) from error
    return _find_file(folder)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), ["bytes"], cutoff=0.7)
    hint = " (did you mean 'bytes'?)" if near else ""
    return f"tokenizer is {name!r}{hint}: neither 'bytes' nor a path"


def _encode_bytes(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    end = bytes([corpus.END_OF_DOCUMENT])
    encoded = [text.encode() for text in texts]
    sizes = np.fromiter(map(len, encoded), np.int32, len(encoded)) + 1
    joined = end.join([*encoded, b""])
    dtype = token_dtype(corpus.VOCAB_SIZE)
    return np.frombuffer(joined, np.uint8).astype(dtype), sizes


def _flatten(
    documents: Sequence[Sequence[int]], eos_id: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.fromiter(map(len, documents), np.int32, len(documents)) + 1
    pieces = itertools.chain.from_iterable(
        itertools.chain(document, (eos_id,)) for document in documents
    )
    dtype = token_dtype(vocab_size)
    return np.fromiter(pieces, dtype, int(sizes.sum(dtype=np.int64))), sizes


def _load_huggingface(content: bytes) -> Any:
    from tokenizers import Tokenizer as Model

    model = Model.from_buffer(content)
    # Files often cut or pad; and a text that spells a special token is text.
    model.no_truncation()
    model.no_padding()
    model.encode_special_tokens = True
    return model


def _encode_huggingface(
    model: Any, eos_id: int, vocab_size: int, texts: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    encodings = model.encode_batch_fast(list(texts), add_special_tokens=False)
    return _flatten([e.ids for e in encodings], eos_id, vocab_size)


def _read_huggingface(
    path: Path, eos_token: str | None, eos_id: int | None
) -> Tokenizer:
    content = path.read_bytes()
    try:
        model = _load_huggingface(content)
    except Exception as error:  # the library raises Exception itself
        raise ValueError(f"{path} is not a tokenizer.json: {error}") from error
    vocabulary = model.get_vocab(with_added_tokens=True)
    vocab_size = max(vocabulary.values()) + 1
    if eos_id is not None:
        return Tokenizer("huggingface", content, vocab_size, eos_id)
    token = eos_token or _eos_token_beside(path)
    if token is None:
        raise ValueError(
            f"{path} does not say which token ends a document: give "
            "--eos-token, or put tokenizer_config.json beside it"
        )
    if token not in vocabulary:
        raise ValueError(f"eos_token {token!r} is not in {path}")
    return Tokenizer("huggingface", content, vocab_size, vocabulary[token])


def _eos_token_beside(path: Path) -> str | None:
    """``eos_token`` of the Hugging Face files in the tokenizer's folder."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = path.with_name(name)
        if file.is_file():
            values = json.loads(file.read_text("utf-8"))
            if not isinstance(values, dict):
                raise ValueError(f"{file} holds no map of names to values")
            token = values.get("eos_token")
            if isinstance(token, dict):
                token = token.get("content")
            if token:
                return token
    return None


def _load_sentencepiece(content: bytes) -> Any:
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_proto=content)


def _encode_sentencepiece(
    processor: Any, eos_id: int, vocab_size: int, texts: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    documents = processor.encode(list(texts), out_type=int, num_threads=1)
    return _flatten(documents, eos_id, vocab_size)


def _read_sentencepiece(
    path: Path, eos_token: str | None, eos_id: int | None
) -> Tokenizer:
    content = path.read_bytes()
    try:
        processor = _load_sentencepiece(content)
    except (RuntimeError, OSError) as error:
        raise ValueError(
            f"{path} is not a SentencePiece model: {error}"
        ) from error
    if eos_id is None and eos_token is None:
        eos_id = processor.eos_id()
        if eos_id < 0:
            raise ValueError(
                f"{path} has no token that ends a document: give --eos-token"
            )
    elif eos_id is None:
        eos_id = processor.piece_to_id(eos_token)
        if processor.id_to_piece(eos_id) != eos_token:
            raise ValueError(f"eos_token {eos_token!r} is not in {path}")
    return Tokenizer("sentencepiece", content, processor.vocab_size(), eos_id)
