# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What a run needs and this machine lacks: devices, precision, data."""

from __future__ import annotations

import importlib.util

import paddle

from paddle_adagc.checks import check_directory
from paddle_adagc.lab.data.config import DataConfig
from paddle_adagc.lab.data.datasets import (
    build_datasets,
    manifest_vocab_size,
    num_windows,
)
from paddle_adagc.lab.train.arguments import check_precision, uses_amp
from paddle_adagc.lab.train.config import RunConfig


def missing_devices(config: RunConfig) -> list[str]:
    """GPUs and precision that the run asks for and this machine lacks."""
    needed = config.parallel.num_processes
    found = paddle.device.cuda.device_count()
    missing = []
    if found < needed and (needed > 1 or uses_amp(config.train)):
        missing.append(f"GPUs: {needed} for {needed} processes, {found} here")
    try:
        check_precision(config.train)
    except ValueError as error:
        missing.append(str(error))
    return missing


def missing_output(config: RunConfig) -> list[str]:
    """What keeps the run from writing to its directory."""
    try:
        check_directory("train.output_dir", config.train.output_dir)
    except ValueError as error:
        return [str(error)]
    return []


def missing_for_paddleformers(config: RunConfig) -> list[str]:
    """The package, and what its kernels need."""
    missing = []
    if importlib.util.find_spec("paddleformers") is None:
        missing.append(
            "PaddleFormers: pip install '.[formers]', without '[nlp]'"
        )
    if not paddle.device.is_compiled_with_cuda():
        missing.append(
            f"train.precision={config.train.precision}: PaddleFormers' kernels "
            "need a GPU build of Paddle"
        )
    return missing


def check_data(
    config: DataConfig, num_samples: int, vocab_size: int
) -> tuple[list[str], list[str]]:
    """Look at the data without reading a memory-mapped dataset's tokens.

    Args:
        config: The data.
        num_samples: Sequences of the whole run.
        vocab_size: Of the model.

    Returns:
        Lines that describe it, and what is missing here.

    Raises:
        ValueError: The files are broken or too small, or the model's vocabulary
            is smaller than theirs.
    """
    try:
        train, _ = build_datasets(config, num_samples)
    except FileNotFoundError as error:
        tokens = num_samples * config.seq_length + 1
        lines = [
            f"{config.kind}, {config.prefix}: the run needs {tokens:,} tokens"
        ]
        return lines, [f"data: {error}"]
    if config.kind != "mmap":
        _check_vocabulary(train.vocab_size, vocab_size)
        return [f"{config.kind}, {len(train.tokens):,} tokens"], []
    windows = num_windows(len(train.tokens), config.seq_length)
    lines = [
        f"mmap, {config.prefix}: {len(train.tokens):,} tokens for training, "
        f"the run takes {num_samples / windows:.2f} epochs"
    ]
    assert config.prefix is not None
    of_data = manifest_vocab_size(config.prefix)
    if of_data is None:
        manifest = f"{config.prefix}.manifest.json"
        return lines, [f"data: no {manifest} to tell the vocabulary by"]
    _check_vocabulary(of_data, vocab_size)
    return lines, []


def _check_vocabulary(of_data: int, of_model: int) -> None:
    if of_data > of_model:
        raise ValueError(
            f"model.vocab_size={of_model}: the data's vocabulary has "
            f"{of_data} tokens; raise it"
        )
