# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The image-text datasets that a config describes."""

from __future__ import annotations

import glob
import importlib.util
import re
from pathlib import Path
from typing import Any

from adagc_lab import check_installed
from adagc_lab.data.config import DataConfig
from adagc_lab.data.datasets import DataFindings
from adagc_lab.data.images import PairFormat, ShapesDataset, split_scenes


def build_image_text_datasets(
    config: DataConfig, num_train_samples: int, wanted: PairFormat
) -> tuple[Any, Any]:
    """Open the training and the validation data that ``config`` describes.

    Samples have ``pixel_values``, float32 ``[3, image_size, image_size]``, and
    ``input_ids``, int64 ``[context_length]``. Validation shows scenes, or reads
    shards, that training does not.
    """
    if config.kind == "webdataset":
        check_installed("webdataset", "image-text")
        from adagc_lab.data.shards import open_pairs

        return open_pairs(config, num_train_samples, wanted)
    scenes, held_out = split_scenes(config.validation_fraction, config.seed)
    size, seed = config.validation_size, config.seed
    return (
        ShapesDataset(
            scenes, num_train_samples, wanted, seed=seed, is_random=True
        ),
        ShapesDataset(
            held_out, size, wanted, seed=seed + 2**32, is_random=False
        ),
    )


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
