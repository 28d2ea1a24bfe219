# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Windows of token streams: the standard library's source, or a dataset's.

An order maps sample ``i`` to the position of its first token. It is a pure
function of the seed and ``i``: a resumed run starts at any sample without
replay, and every rank and worker sees the same samples.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import io
import os
import platform
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from paddle.io import Dataset

from adagc_lab.checksums import sampled_sha256, sha256
from adagc_lab.data.config import DataConfig
from adagc_lab.data.loading import check_index, permutation, random_bits

BYTES = 256
"""Size of the standard library's vocabulary: tokens are bytes."""

END_OF_DOCUMENT = 0
"""Token after each file. Python source never contains the byte 0."""

_SKIPPED_DIRECTORIES = {"site-packages", "dist-packages", "__pycache__"}
_PROBED = 10**6
"""Tokens of a dataset that are compared with the model's."""


def read_sources(directory: str | os.PathLike[str]) -> dict[str, bytes]:
    """Read every ``*.py`` file below a directory, sorted by name.

    Installed packages and ``__pycache__`` are left out, and so are empty files
    and files with the content of an earlier one: no text can be on both sides
    of a split by file.
    """
    root = Path(directory)
    names = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = {*subfolders} - _SKIPPED_DIRECTORIES
        parent = Path(folder).relative_to(root)
        names += [(parent / f).as_posix() for f in files if f.endswith(".py")]
    contents: dict[bytes, str] = {}
    for name in sorted(names):
        contents.setdefault((root / name).read_bytes(), name)
    contents.pop(b"", None)
    if not contents:
        raise FileNotFoundError(f"no Python source below {str(root)!r}")
    return {name: text for text, name in contents.items()}


@functools.lru_cache(maxsize=1)
def standard_library() -> Mapping[str, bytes]:
    """Return the source of the running interpreter's standard library.

    Losses of two machines are comparable only where the fingerprints agree:
    another version of Python gives other text. CPython 3.11 has about 30 MB in
    1,700 files.
    """
    return read_sources(sysconfig.get_path("stdlib"))


def tokens_of(documents: Iterable[bytes]) -> np.ndarray:
    """Join documents, each followed by its end token; uint8, read-only."""
    end = bytes([END_OF_DOCUMENT])
    return np.frombuffer(b"".join(text + end for text in documents), np.uint8)


def split_documents(
    documents: Mapping[str, bytes], fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Hold out whole documents with this fraction of the tokens, by ``seed``.

    The order is that of a hash of the seed and the name, so a file keeps its
    rank when other files come or go. Neither part is empty.
    """

    def rank(name: str) -> bytes:
        return hashlib.sha256(f"{seed}:{name}".encode()).digest()

    order = sorted(documents, key=rank)
    ends = np.cumsum([len(documents[name]) + 1 for name in order])
    num_taken = int(np.searchsorted(ends, fraction * ends[-1])) + 1
    if num_taken >= len(order):
        raise ValueError(
            f"validation_fraction={fraction} of {len(order)} documents leaves "
            "none to train on: lower it"
        )
    taken = {*order[:num_taken]}
    kept = (text for name, text in documents.items() if name not in taken)
    held_out = (text for name, text in documents.items() if name in taken)
    return tokens_of(kept), tokens_of(held_out)


def sources_fingerprint(documents: Mapping[str, bytes]) -> dict[str, Any]:
    """Return facts that tell whether another machine's source is equal."""
    sizes = [len(text) + 1 for text in documents.values()]
    digest = hashlib.sha256("\n".join(documents).encode())
    digest.update(np.cumsum([0, *sizes], dtype="<i8").tobytes())
    digest.update(tokens_of(documents.values()).data)
    return {
        "sha256": digest.hexdigest(),
        "num_files": len(documents),
        "num_bytes": sum(sizes) - len(documents),
        "python": platform.python_version(),
    }


def indexed_dataset() -> Any:
    """Return PaddleNLP's module of the format, or PaddleFormers' copy."""
    has_nlp = importlib.util.find_spec("paddlenlp") is not None
    name = "paddlenlp" if has_nlp else "paddleformers"
    return importlib.import_module(f"{name}.data.indexed_dataset")


class IndexedTokens:
    """PaddleNLP's memory-mapped ``.bin`` and ``.idx`` as a stream of tokens.

    ``prefix`` is the path without these endings. (PaddleNLP's own dataset is
    not used: its sample ``i`` depends on the length of the run, and it caches
    an index that survives a rewritten dataset.)
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        path, index = prefix + ".bin", prefix + ".idx"
        if missing := [p for p in (path, index) if not os.path.isfile(p)]:
            raise FileNotFoundError(
                f"{' and '.join(missing)} not found: the prefix is the path "
                "without .bin and .idx; tools/prepare_data.py makes both files"
            )
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                found = indexed_dataset().MMapIndexedDataset.Index(index, True)
            dtype, sizes = np.dtype(found.dtype), np.array(found.sizes)
            ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            documents = ends[found.doc_idx]
        except Exception as error:  # wrong bytes raise anything
            raise ValueError(f"{index} is no index: {error!r}") from error
        needed, size = int(ends[-1]) * dtype.itemsize, os.path.getsize(path)
        if size != needed or not needed:
            raise ValueError(
                f"{path} has {size} bytes, but {index} describes {needed}: "
                "write the dataset again or copy it completely"
            )
        self.boundaries = np.unique(np.concatenate([documents, ends[[0, -1]]]))
        """``[num_documents + 1]`` int64: first token of each document that is
        not empty, and the end."""
        self.tokens = np.asarray(np.memmap(path, dtype, mode="r"))

    def split(self, fraction: float) -> tuple[np.ndarray, np.ndarray]:
        """Hold out the last ``fraction`` of the documents, at least one."""
        count = len(self.boundaries) - 1
        if count < 2:
            raise ValueError(
                f"{self.prefix} has {count} documents: training and validation "
                "need one each at least"
            )
        num_taken = min(max(round(fraction * count), 1), count - 1)
        cut = int(self.boundaries[count - num_taken])
        return self.tokens[:cut], self.tokens[cut:]

    def fingerprint(self) -> dict[str, Any]:
        """Return facts by which the dataset can be recognised."""
        return {
            "sha256": sha256(self.prefix + ".idx"),
            "sampled_sha256": sampled_sha256(self.prefix + ".bin"),
            "num_documents": len(self.boundaries) - 1,
            "num_tokens": int(self.boundaries[-1]),
        }


@dataclasses.dataclass(frozen=True)
class Order:
    """First tokens of samples, drawn from ``starts``, those of the windows.

    By epoch every window comes once per epoch, in a new order for each
    (8 bytes a window); otherwise windows are drawn with replacement.
    """

    starts: Sequence[int]
    num_samples: int
    seed: int
    by_epoch: bool = False

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        number = len(self.starts)
        if not self.by_epoch:
            return self.starts[random_bits(self.seed, index) % number]
        epoch, place = divmod(index, number)
        return self.starts[permutation(number, (self.seed, epoch))[place]]


class TokenDataset(Dataset):
    """Windows of one token stream; sample ``i`` starts at ``order[i]``.

    Windows may cross the boundaries of documents.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        order: Order | tuple[int, ...],
        seq_length: int,
        fingerprint: dict[str, Any],
    ) -> None:
        super().__init__()
        self.tokens, self.order, self.seq_length = tokens, order, seq_length
        self.fingerprint = fingerprint

    @functools.cached_property
    def vocab_size(self) -> int:
        """Smallest vocabulary that holds the first tokens of this part."""
        if self.tokens.dtype == np.uint8:
            return BYTES
        return int(self.tokens[:_PROBED].max()) + 1

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Read ``input_ids`` and ``labels``, each int64 ``[seq_length]``.

        A label is the token after its input. The two may share memory.
        """
        start = self.order[check_index(index, len(self))]
        stop = start + self.seq_length + 1
        window = self.tokens[start:stop].astype(np.int64)
        return {"input_ids": window[:-1], "labels": window[1:]}


def build_datasets(
    config: DataConfig, num_train_samples: int
) -> tuple[TokenDataset, TokenDataset]:
    """Open the training and the validation data of a config.

    The first of the ``num_train_samples`` do not depend on their number: a run
    can be prolonged without changing what it has already seen. Validation
    samples are fixed, of documents that training never sees.
    """
    length = config.seq_length
    if config.kind == "mmap":
        assert config.prefix is not None
        source = IndexedTokens(config.prefix)
        facts = other_facts = source.fingerprint()
        if config.validation_prefix is None:
            train, held_out = source.split(config.validation_fraction)
        else:
            other = IndexedTokens(config.validation_prefix)
            train, held_out = source.tokens, other.tokens
            other_facts = other.fingerprint()
            facts = {**facts, "validation": other_facts}
    else:
        documents = standard_library()
        facts = other_facts = sources_fingerprint(documents)
        train, held_out = split_documents(
            documents, config.validation_fraction, config.seed
        )
    order = _training_order(config, len(train), num_train_samples)
    fixed = _validation_order(config, len(held_out))
    return (
        TokenDataset(train, order, length, facts),
        TokenDataset(held_out, fixed, length, other_facts),
    )


def num_windows(num_tokens: int, seq_length: int) -> int:
    """Count the windows that follow each other without a gap, at least one.

    Neighbours share one token: the last label of one is the first input of
    the next.
    """
    count = (num_tokens - 1) // seq_length
    if count < 1:
        raise ValueError(
            f"{num_tokens} tokens hold no window of {seq_length} tokens and "
            "their labels: give more text or a smaller seq_length"
        )
    return count


def _training_order(
    config: DataConfig, num_tokens: int, num_samples: int
) -> Order:
    length, seed = config.seq_length, config.seed
    available = num_windows(num_tokens, length)
    if config.kind == "stdlib":
        return Order(range(num_tokens - length), num_samples, seed)
    if config.kind == "mmap":
        windows = range(0, available * length, length)
        return Order(windows, num_samples, seed, by_epoch=True)
    if config.num_sequences > available:
        raise ValueError(
            f"num_sequences is {config.num_sequences}, but the training text "
            f"has {available} windows of {length} tokens: lower it"
        )
    chosen = permutation(available, seed)[: config.num_sequences]
    return Order([*map(int, chosen * length)], num_samples, seed)


def _validation_order(config: DataConfig, num_tokens: int) -> tuple[int, ...]:
    available = num_windows(num_tokens, config.seq_length)
    size = config.validation_size
    if size > available:
        raise ValueError(
            f"validation_size is {size}, but the validation part has "
            f"{available} windows of {config.seq_length} tokens: lower it, or "
            "hold out more documents (validation_fraction, validation_prefix)"
        )
    return tuple(i * available // size * config.seq_length for i in range(size))


class DataFindings(NamedTuple):
    """Findings about a run's data, as lines for people."""

    lines: list[str]  # description of the data
    missing: list[str]  # files that this machine lacks


def inspect_tokens(
    config: DataConfig, num_samples: int, vocab_size: int
) -> DataFindings:
    """Look at token data; a memory-mapped dataset's tokens are not read.

    ``num_samples`` are those of the whole run, ``vocab_size`` is the model's.
    """
    try:
        train, _ = build_datasets(config, num_samples)
    except FileNotFoundError as error:
        tokens = num_samples * config.seq_length + 1
        line = f"mmap, {config.prefix}: the run needs {tokens:,} tokens"
        return DataFindings([line], [f"data: {error}"])
    if train.vocab_size > vocab_size:
        raise ValueError(
            f"model.vocab_size={vocab_size}: the data's vocabulary has "
            f"{train.vocab_size} tokens; raise it"
        )
    line = f"{config.kind}, {len(train.tokens):,} tokens for training"
    if config.kind == "mmap":
        windows = num_windows(len(train.tokens), config.seq_length)
        line += f", the run takes {num_samples / windows:.2f} epochs"
    return DataFindings([line], [])
