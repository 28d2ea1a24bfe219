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
"""Histograms of a clip's tensors, by the writers of a Trainer's callbacks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_QUANTITIES = ("norm", "gamma", "h")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


def add_histograms(
    callbacks: Iterable[Any],
    tensors: Mapping[str, Mapping[str, float]],
    step: int,
) -> None:
    """Write histograms of norm, gamma and h over the layers.

    Tensors whose names differ in numbers alone are one group: the tag
    ``clip_norm/layers.N.mlp.up.weight`` holds a value per layer, of an MoE one
    per layer and expert. Values that are not finite are left out.

    Args:
        callbacks: Those of a Trainer. Its writers for VisualDL, TensorBoard
            and Weights & Biases are used, others get nothing.
        tensors: Key -> norm, h, and what the rule keeps.
        step: Optimizer steps made.
    """
    groups = {f"train/{tag}": v for tag, v in _grouped(tensors).items()}
    for callback in callbacks if groups else ():
        for name in ("vdl_writer", "tb_writer"):
            writer = getattr(callback, name, None)
            if writer is not None:
                for tag, values in groups.items():
                    writer.add_histogram(tag, values, step)
        wandb = getattr(callback, "_wandb", None)
        if wandb is not None:
            bars = {tag: wandb.Histogram(v) for tag, v in groups.items()}
            wandb.log({**bars, "train/global_step": step})


def _grouped(
    tensors: Mapping[str, Mapping[str, float]],
) -> dict[str, np.ndarray]:
    groups: dict[str, list[float]] = {}
    for key, quantities in tensors.items():
        group = _NUMBER.sub("N", key)
        for name in _QUANTITIES:
            value = quantities.get(name, math.nan)
            if math.isfinite(value):
                groups.setdefault(f"clip_{name}/{group}", []).append(value)
    return {tag: np.array(values) for tag, values in groups.items()}
