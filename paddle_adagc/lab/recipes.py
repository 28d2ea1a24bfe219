# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read recipes of either trainer, and compare their batches."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

from paddle_adagc.lab.paddleformers.recipe import as_run_config, is_recipe
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.parse import load_config


def read_run_config(
    path: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> RunConfig:
    """Read a run config, or a recipe for PaddleFormers as one.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Bad settings.
    """
    read = as_run_config if is_recipe(path) else load_config
    return read(path, overrides)


def batch_change(config: RunConfig, path: str | os.PathLike[str]) -> str | None:
    """Say in a line that a run's global batch differs from its file's.

    Args:
        config: The run, with all overrides.
        path: File of the run.

    Returns:
        Both batches; None if they are equal, or if the file alone is not a
        valid run.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            original = read_run_config(path)
    except (FileNotFoundError, ValueError):
        return None
    if original.global_batch == config.global_batch:
        return None
    return (
        f"{config.global_batch:,} {config.sample_name} a step, the recipe has "
        f"{original.global_batch:,}"
    )
