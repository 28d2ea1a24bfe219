# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The image-text datasets that a config describes."""

from __future__ import annotations

import dataclasses
import functools
import glob
import importlib.util
import math
import re
from pathlib import Path
from typing import Any

from paddle_adagc.lab import check_installed
from paddle_adagc.lab.data.config import DataConfig
from paddle_adagc.lab.data.datasets import DataFindings
from paddle_adagc.lab.data.images import ShapesDataset, split_scenes
from paddle_adagc.lab.data.tokenizers import CaptionTokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairFormat:
    """Form that a model and its run need image-text data in."""

    image_size: int  # height and width, in pixels
    context_length: int  # tokens of a caption, padding included
    end_token: int  # ends a caption, the last of the model's tokens
    batch_size: int  # pairs per rank and step
    num_ranks: int  # ranks with data of their own


def build_image_text_datasets(
    config: DataConfig, num_train_samples: int, wanted: PairFormat
) -> tuple[Any, Any]:
    """Open the training and the validation data that ``config`` describes.

    Samples have ``pixel_values``, float32 ``[3, image_size, image_size]``, and
    ``input_ids``, int64 ``[context_length]``. Validation shows scenes, or reads
    shards, that training does not.
    """
    if config.kind == "webdataset":
        return _open_shards(config, num_train_samples, wanted)
    scenes, held_out = split_scenes(config.validation_fraction, config.seed)
    make = functools.partial(
        ShapesDataset,
        image_size=wanted.image_size,
        context_length=wanted.context_length,
        end_token=wanted.end_token,
    )
    seeds = config.seed, config.seed + 2**32
    return (
        make(scenes, num_train_samples, seed=seeds[0], is_random=True),
        make(held_out, config.validation_size, seed=seeds[1], is_random=False),
    )


def _open_shards(
    config: DataConfig, num_train_samples: int, wanted: PairFormat
) -> tuple[Any, Any]:
    check_installed("webdataset", "image-text")
    from paddle_adagc.lab.data import shards as tar_shards

    assert config.shards is not None
    assert config.tokenizer is not None
    tokenizer = CaptionTokenizer(config.tokenizer, wanted.context_length)
    size, end = tokenizer.vocab_size, tokenizer.end_token
    if not end == size - 1 == wanted.end_token:
        way_out = f"set it to {size}" if end == size - 1 else "give CLIP's"
        raise ValueError(
            f"model.vocab_size={wanted.end_token + 1}: captions end with the "
            f"model's last token, and {config.tokenizer} has {size} tokens and "
            f"ends them with {end}; {way_out}"
        )
    shards = tar_shards.find_shards(config.shards)
    num_held_out = math.ceil(config.validation_fraction * len(shards))
    if num_held_out == len(shards):
        raise ValueError(
            f"{config.shards} is {len(shards)} shard(s): give at least 2, the "
            "last ones are for validation"
        )
    train = tar_shards.training_pairs(
        shards[:-num_held_out],
        num_train_samples,
        tokenizer,
        image_size=wanted.image_size,
        batch_size=wanted.batch_size,
        num_streams=wanted.num_ranks * max(1, config.num_workers),
        seed=config.seed,
        shuffle_size=config.shuffle_size,
    )
    validation = tar_shards.held_out_pairs(
        shards[-num_held_out:],
        config.validation_size,
        tokenizer,
        image_size=wanted.image_size,
    )
    return train, validation


def inspect_pairs(config: DataConfig) -> DataFindings:
    """Look for tar shards, their tokenizer and the package that reads them."""
    if config.kind != "webdataset":
        return DataFindings([], [])
    missing = []
    if importlib.util.find_spec("webdataset") is None:
        missing.append("webdataset: pip install '.[image-text]'")
    shards = str(config.shards)
    if not glob.glob(re.sub(r"\{[^{}]*\}", "*", shards)):
        missing.append(f"data: there are no shards {shards}")
    if not Path(str(config.tokenizer)).is_file():
        missing.append(f"data: there is no tokenizer {config.tokenizer}")
    return DataFindings([f"webdataset, {shards}"], missing)
