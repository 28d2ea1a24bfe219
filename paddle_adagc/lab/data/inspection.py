# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Describe a run's data and find what of it this machine lacks."""

from __future__ import annotations

import dataclasses

from paddle_adagc.lab.data.config import DataConfig
from paddle_adagc.lab.data.datasets import (
    build_datasets,
    manifest_vocab_size,
    num_windows,
)


@dataclasses.dataclass(frozen=True)
class DataFindings:
    """Findings, as lines for people."""

    lines: list[str]
    """Description of the data."""

    missing: list[str]
    """Files and packages that this machine lacks."""


def inspect_tokens(
    config: DataConfig, num_samples: int, vocab_size: int
) -> DataFindings:
    """Look at token data; a memory-mapped dataset's tokens are not read.

    Args:
        config: The data.
        num_samples: Sequences of the whole run.
        vocab_size: Size of the model's vocabulary.

    Raises:
        ValueError: The files are broken or too small, or the model's vocabulary
            is smaller than theirs.
    """
    try:
        train, _ = build_datasets(config, num_samples)
    except FileNotFoundError as error:
        tokens = num_samples * config.seq_length + 1
        needed = f"the run needs {tokens:,} tokens"
        return DataFindings(
            [f"{config.kind}, {config.prefix}: {needed}"], [f"data: {error}"]
        )
    if config.kind != "mmap":
        _check_vocabulary(train.vocab_size, vocab_size)
        return DataFindings(
            [f"{config.kind}, {len(train.tokens):,} tokens"], []
        )
    windows = num_windows(len(train.tokens), config.seq_length)
    line = (
        f"mmap, {config.prefix}: {len(train.tokens):,} tokens for training, "
        f"the run takes {num_samples / windows:.2f} epochs"
    )
    assert config.prefix is not None
    of_data = manifest_vocab_size(config.prefix)
    if of_data is None:
        manifest = f"{config.prefix}.manifest.json"
        return DataFindings(
            [line], [f"data: no {manifest} to tell the vocabulary by"]
        )
    _check_vocabulary(of_data, vocab_size)
    return DataFindings([line], [])


def _check_vocabulary(of_data: int, of_model: int) -> None:
    if of_data > of_model:
        raise ValueError(
            f"model.vocab_size={of_model}: the data's vocabulary has "
            f"{of_data} tokens; raise it"
        )
