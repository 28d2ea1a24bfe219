# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Token datasets behind one interface, and how a config becomes two of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from paddle.io import Dataset

from paddle_adagc.checks import check_choice
from paddle_adagc.lab.data import corpus
from paddle_adagc.lab.data.config import TEXT_KINDS, DataConfig
from paddle_adagc.lab.data.manifest import check_dataset, read_manifest
from paddle_adagc.lab.data.order import (
    EpochOrder,
    Order,
    RandomChoiceOrder,
    RandomOrder,
    distinct_windows,
)

IGNORED_LABEL = -100
"""Label of a position that has no loss."""


class TokenDataset(Dataset):
    """Windows of one token stream; sample ``i`` starts at ``order[i]``.

    Sample ``i`` depends on nothing but the tokens and ``order``, so samplers
    should not shuffle: ``shuffle=False`` and a start index are enough to
    resume. Windows may cross document boundaries.

    Args:
        tokens: ``[num_tokens]``, integers; a view of a mapped file will do.
        order: Start of each sample, each in [0, num_tokens - seq_length).
        seq_length: Tokens a sample.
        vocab_size: Smallest vocabulary that holds every token; found from
            ``tokens`` when it is first asked for, if not given.
        loss_mask: ``[num_tokens]``; 0 where a token is not to be predicted.
        fingerprint: Identity of the source, for the run's record.

    Raises:
        ValueError: ``tokens`` hold no window of ``seq_length`` tokens and
            their labels.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        order: Order,
        *,
        seq_length: int,
        vocab_size: int | None = None,
        loss_mask: np.ndarray | None = None,
        fingerprint: dict[str, str | int] | None = None,
    ) -> None:
        super().__init__()
        num_windows(len(tokens), seq_length)
        self.tokens = tokens
        self.order = order
        self.seq_length = seq_length
        self.loss_mask = loss_mask
        self.fingerprint = fingerprint or {}
        self._vocab_size = vocab_size

    @functools.cached_property
    def vocab_size(self) -> int:
        """Smallest vocabulary that holds every token of this dataset's part.

        Without a manifest a memory-mapped file's part is read once, from start
        to end, to find it; check the validation dataset's as well as the
        training dataset's.
        """
        if self._vocab_size is not None:
            return self._vocab_size
        return int(self.tokens.max()) + 1

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Read sample ``index``.

        Returns:
            ``input_ids`` and ``labels``, each int64 ``[seq_length]``; a label
            is the token after its input, or :data:`IGNORED_LABEL`. The two
            may share memory.

        Raises:
            IndexError: ``index`` is not in [0, len(self)).
        """
        index = int(index)
        if not 0 <= index < len(self.order):
            raise IndexError(
                f"sample {index} of a dataset of {len(self.order)} samples"
            )
        start = self.order[index]
        stop = start + self.seq_length + 1
        window = self.tokens[start:stop].astype(np.int64)
        labels = window[1:]
        if self.loss_mask is not None:
            keep = self.loss_mask[start + 1 : stop]
            labels = np.where(keep, labels, IGNORED_LABEL)
        return {"input_ids": window[:-1], "labels": labels}


def collate_batch(
    samples: Sequence[dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Stack samples of equal shapes: each entry ``[batch_size, ...]``.

    Pass it as ``collate_fn`` of a ``DataLoader`` or ``data_collator`` of a
    ``Trainer``.
    """
    return {
        key: np.stack([sample[key] for sample in samples]) for key in samples[0]
    }


def build_datasets(
    config: DataConfig, num_train_samples: int
) -> tuple[TokenDataset, TokenDataset]:
    """Open the training and the validation data of a config.

    The first samples do not depend on ``num_train_samples``: a run can be
    prolonged without changing what it has already seen. Every rank builds the
    same datasets without communication; a distributed batch sampler gives
    each rank its samples.

    Args:
        config: Kind of data, sequence length, seed, validation set.
        num_train_samples: Length of the training dataset, at least 1: steps
            times global batch size.

    Returns:
        Training dataset, and validation dataset of ``config.validation_size``
        fixed samples from documents that training never sees.

    Raises:
        ValueError: Data of another kind than text; or a part has too few
            tokens, or a file is not a dataset.
        FileNotFoundError: ``config.prefix`` has no ``.bin`` or ``.idx``.
    """
    if num_train_samples < 1:
        raise ValueError(
            f"num_train_samples is {num_train_samples}: give at least 1"
        )
    check_choice("data.kind", config.kind, TEXT_KINDS)
    if config.kind == "mmap":
        return _build_mmap(config, num_train_samples)
    source = corpus.load_stdlib_corpus()
    fingerprint = source.fingerprint()
    parts = source.split(config.validation_fraction, config.seed)
    train, validation = (part.tokens for part in parts)
    orders = (
        _embedded_order(config, len(train), num_train_samples),
        _validation_order(config, len(validation)),
    )
    train_dataset, validation_dataset = (
        TokenDataset(
            tokens,
            order,
            seq_length=config.seq_length,
            vocab_size=corpus.VOCAB_SIZE,
            fingerprint=fingerprint,
        )
        for tokens, order in zip((train, validation), orders, strict=True)
    )
    return train_dataset, validation_dataset


def _build_mmap(
    config: DataConfig, num_train_samples: int
) -> tuple[TokenDataset, TokenDataset]:
    # PaddleNLP takes seconds to import and the other kinds do without it.
    from paddle_adagc.lab.data.indexed import IndexedTokens

    assert config.prefix is not None
    for prefix in filter(None, (config.prefix, config.validation_prefix)):
        check_dataset(prefix)
    source = IndexedTokens(config.prefix)
    vocab_size = held_out_vocab_size = manifest_vocab_size(config.prefix)
    if config.validation_prefix is None:
        held_out = source
        train, validation = source.split(config.validation_fraction)
    else:
        held_out = IndexedTokens(config.validation_prefix)
        train, validation = source.all(), held_out.all()
        if config.validation_prefix != f"{config.prefix}_validation":
            held_out_vocab_size = manifest_vocab_size(config.validation_prefix)
    train_order = EpochOrder(
        num_windows=num_windows(len(train.tokens), config.seq_length),
        seq_length=config.seq_length,
        num_samples=num_train_samples,
        seed=config.seed,
    )
    validation_order = _validation_order(config, len(validation.tokens))
    train_dataset, validation_dataset = (
        TokenDataset(
            part.tokens,
            order,
            seq_length=config.seq_length,
            vocab_size=size,
            loss_mask=part.loss_mask,
            fingerprint=origin.fingerprint(),
        )
        for part, order, origin, size in (
            (train, train_order, source, vocab_size),
            (validation, validation_order, held_out, held_out_vocab_size),
        )
    )
    return train_dataset, validation_dataset


def manifest_vocab_size(prefix: str) -> int | None:
    """Vocabulary of a dataset that ``tools/prepare_data.py`` has made.

    Args:
        prefix: Path of the dataset without ``.bin`` and ``.idx``.

    Returns:
        What its manifest says; None if it has none.

    Raises:
        ValueError: The manifest is damaged.
    """
    manifest = Path(f"{prefix}.manifest.json")
    if not manifest.is_file():
        return None
    return read_manifest(manifest)["tokenizer"]["vocab_size"]


def num_windows(num_tokens: int, seq_length: int) -> int:
    """Count the windows that follow each other without a gap.

    Neighbours share one token: the last label of one is the first input of
    the next.

    Raises:
        ValueError: There is not even one.
    """
    count = (num_tokens - 1) // seq_length
    if count < 1:
        raise ValueError(
            f"{num_tokens} tokens hold no window of {seq_length} tokens and "
            "their labels: give more text or a smaller seq_length"
        )
    return count


def _embedded_order(
    config: DataConfig, num_tokens: int, num_samples: int
) -> Order:
    seq_length, seed = config.seq_length, config.seed
    if config.kind == "stdlib":
        num_windows(num_tokens, seq_length)
        return RandomOrder(num_tokens - seq_length, num_samples, seed)
    available = num_windows(num_tokens, seq_length)
    if config.num_sequences > available:
        raise ValueError(
            f"num_sequences is {config.num_sequences}, but the training text "
            f"has {available} windows of {seq_length} tokens: lower it"
        )
    windows = distinct_windows(available, config.num_sequences, seed)
    starts = tuple(int(w) * seq_length for w in windows)
    return RandomChoiceOrder(starts, num_samples, seed)


def _validation_order(config: DataConfig, num_tokens: int) -> Order:
    available = num_windows(num_tokens, config.seq_length)
    size = config.validation_size
    if size > available:
        source = "the validation part"
        remedy = f"raise validation_fraction ({config.validation_fraction})"
        if config.kind == "mmap" and config.validation_prefix is not None:
            source, remedy = config.validation_prefix, "give more documents"
        raise ValueError(
            f"validation_size is {size}, but {source} has {available} windows "
            f"of {config.seq_length} tokens: lower it, or {remedy}"
        )
    return tuple(i * available // size * config.seq_length for i in range(size))
