# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets of token windows, and how a config becomes two of them.

An order maps sample ``i`` to the position of its first token. It is a pure
function of the seed and ``i``: a resumed run starts at any sample without
replay, and every rank and worker sees the same samples.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import Tensor
from paddle.io import DataLoader, Dataset

from adagc_lab.data import corpus
from adagc_lab.data.config import TEXT_KINDS, DataConfig
from adagc_lab.data.indexed import IndexedTokens
from paddle_adagc.checks import check_choice, check_integer

_MASK = 2**64 - 1
_PROBED = 10**6
"""Tokens of a dataset that are compared with the model's."""


def random_bits(seed: int, index: int) -> int:
    """Draw ``index`` of the stream ``seed``, as an integer in [0, 2**64).

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), whose state is a counter,
    with the seed scrambled first so that neighbouring seeds share no draws.
    """
    counter = _scramble(seed) + (index + 1) * 0x9E3779B97F4A7C15
    return _scramble(counter & _MASK)


def _scramble(z: int) -> int:
    """SplitMix64's output function, a bijection of 64-bit integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


@functools.lru_cache(maxsize=2)
def permutation(number: int, seed: int | tuple[int, int]) -> np.ndarray:
    """Order of the integers below ``number``, int64 ``[number]``."""
    # RandomState's streams are frozen; Generator's may change with NumPy.
    return np.random.RandomState(seed).permutation(number)


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

    Samplers should not shuffle: ``shuffle=False`` and a start index are enough
    to resume. Windows may cross document boundaries.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        order: Order | tuple[int, ...],
        *,
        seq_length: int,
        vocab_size: int | None = None,
        fingerprint: dict[str, str | int] | None = None,
    ) -> None:
        super().__init__()
        num_windows(len(tokens), seq_length)
        self.tokens = tokens
        self.order = order
        self.seq_length = seq_length
        self.fingerprint = fingerprint or {}
        self._vocab_size = vocab_size

    @functools.cached_property
    def vocab_size(self) -> int:
        """Smallest vocabulary that holds the first tokens of this part."""
        return self._vocab_size or int(self.tokens[:_PROBED].max()) + 1

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


def check_index(index: int, num_samples: int) -> int:
    """Return the index of a sample; an IndexError ends a loop over them."""
    if not 0 <= index < num_samples:
        raise IndexError(f"sample {index} of {num_samples}")
    return int(index)


def collate_batch(
    samples: Sequence[dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Stack samples of equal shapes: each entry ``[batch_size, ...]``."""
    keys = samples[0]
    return {key: np.stack([sample[key] for sample in samples]) for key in keys}


class BatchLoader(DataLoader):
    """Paddle's loader, with whose errors the loop over it ends.

    Without workers Paddle reads in a thread. Where that raises, the loop waits
    for ever: so the thread is this class's, one batch ahead of the loop.
    """

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        if self.num_workers:
            try:
                yield from super().__iter__()
            except SystemError as error:  # of a queue that was closed
                raise RuntimeError(
                    "a worker could not read a batch: its error is above"
                ) from error
            return
        with ThreadPoolExecutor(1) as thread:
            ahead = None
            for indices in self.batch_sampler:
                batch = thread.submit(self._read, indices)
                if ahead:
                    yield _to_tensors(ahead.result())
                ahead = batch
            if ahead:
                yield _to_tensors(ahead.result())

    def _read(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
        return self.collate_fn([self.dataset[index] for index in indices])


def _to_tensors(batch: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: paddle.to_tensor(array) for name, array in batch.items()}


def check_fingerprint(
    found: Mapping[str, Any], run: Mapping[str, Any], else_: str = ""
) -> None:
    """Refuse other data than that of a run, whose ``run.json`` is ``run``."""
    known = run.get("data", {})
    if any(found.get(key) != known[key] for key in known):
        raise ValueError(
            f"the data has changed since the run: it was {known}, now it is "
            f"{found}: put it back{else_}"
        )


def build_datasets(
    config: DataConfig, num_train_samples: int
) -> tuple[TokenDataset, TokenDataset]:
    """Open the training and the validation data of a config.

    The first of the ``num_train_samples`` do not depend on their number: a run
    can be prolonged without changing what it has already seen. Every rank
    builds the same datasets without communication; a distributed batch sampler
    gives each its samples. Validation samples are fixed, of documents that
    training never sees.
    """
    check_integer("num_train_samples", num_train_samples, 1)
    check_choice("data.kind", config.kind, TEXT_KINDS)
    open_parts = _open_mmap if config.kind == "mmap" else _split_corpus
    (train, facts), (held_out, other_facts) = open_parts(config)
    order = _training_order(config, len(train), num_train_samples)
    fixed = _validation_order(config, len(held_out))
    length = config.seq_length
    return (
        TokenDataset(train, order, seq_length=length, **facts),
        TokenDataset(held_out, fixed, seq_length=length, **other_facts),
    )


_Part = tuple[np.ndarray, dict[str, Any]]
"""Tokens for training or validation, and their vocabulary and fingerprint."""


def _split_corpus(config: DataConfig) -> tuple[_Part, _Part]:
    source = corpus.load_stdlib_corpus()
    train, held_out = source.split(config.validation_fraction, config.seed)
    facts = {
        "vocab_size": corpus.VOCAB_SIZE,
        "fingerprint": source.fingerprint(),
    }
    return (train.tokens, facts), (held_out.tokens, facts)


def _open_mmap(config: DataConfig) -> tuple[_Part, _Part]:
    source, facts = _open_dataset(config.prefix)
    if config.validation_prefix is None:
        train, held_out = source.split(config.validation_fraction)
        return (train, facts), (held_out, facts)
    other, other_facts = _open_dataset(config.validation_prefix)
    return (source.all(), facts), (other.all(), other_facts)


def _open_dataset(prefix: str | None) -> tuple[IndexedTokens, dict[str, Any]]:
    assert prefix is not None
    source = IndexedTokens(prefix)
    return source, {"fingerprint": source.fingerprint()}


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
    if config.kind == "stdlib":
        return Order(range(num_tokens - length), num_samples, seed)
    available = num_windows(num_tokens, length)
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
    missing: list[str]  # files and packages that this machine lacks


def inspect_tokens(
    config: DataConfig, num_samples: int, vocab_size: int
) -> DataFindings:
    """Look at token data; a memory-mapped dataset's tokens are not read.

    ``num_samples`` are those of the whole run, ``vocab_size`` is the model's.
    """
    prefix = config.prefix
    try:
        train, _ = build_datasets(config, num_samples)
    except FileNotFoundError as error:
        tokens = num_samples * config.seq_length + 1
        line = f"{config.kind}, {prefix}: the run needs {tokens:,} tokens"
        return DataFindings([line], [f"data: {error}"])
    count = f"{len(train.tokens):,} tokens"
    if config.kind == "mmap":
        windows = num_windows(len(train.tokens), config.seq_length)
        line = (
            f"mmap, {prefix}: {count} for training, the run takes "
            f"{num_samples / windows:.2f} epochs"
        )
    else:
        size = num_samples * config.seq_length
        seen = f"draws {size:,} of {count}"
        if config.kind == "fixed_sequences":
            size = config.num_sequences * config.seq_length
            seen = f"sees the same {size:,} of {count} again and again"
        line = f"{config.kind}, the run {seen}"
    if train.vocab_size > vocab_size:
        raise ValueError(
            f"model.vocab_size={vocab_size}: the data's vocabulary has "
            f"{train.vocab_size} tokens; raise it"
        )
    return DataFindings([line], [])
