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
