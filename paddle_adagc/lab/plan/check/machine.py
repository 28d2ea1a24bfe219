# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find devices, precision and packages that this machine lacks."""

from __future__ import annotations

import importlib.util

import paddle

from paddle_adagc.checks import check_directory
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.trainer import check_precision, uses_amp


def missing_devices(config: RunConfig) -> list[str]:
    """Name GPUs and precision that the run needs and this machine lacks."""
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


def missing_paths(config: RunConfig) -> list[str]:
    """Name the directories that the run cannot write to."""
    try:
        check_directory("train.output_dir", config.train.output_dir)
    except (FileNotFoundError, PermissionError, ValueError) as error:
        return [str(error)]
    return []


def missing_for_paddleformers(config: RunConfig) -> list[str]:
    """Name PaddleFormers and the GPU that its kernels need, if missing."""
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
