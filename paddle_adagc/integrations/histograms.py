# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
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
    summary: Mapping[str, Any],
    step: int,
) -> None:
    """Write histograms of norm, gamma and h over the layers.

    Tensors whose names differ in numbers alone are one group: the tag
    ``clip_norm/layers.N.mlp.up.weight`` holds a value per layer, of an MoE one
    per layer and expert. A tensor that is a group alone gets a curve instead,
    since VisualDL shows no histogram of one value. Values that are not finite
    are left out.

    Args:
        callbacks: Those of a Trainer. Its writers for VisualDL, TensorBoard
            and Weights & Biases are used, others get nothing.
        summary: Of the clip, with ``tensors``; the h of ``lowest_h`` stand in
            the Trainer's log already.
        step: Optimizer steps made.
    """
    bars, points = _bars_and_points(summary.get("tensors", {}))
    for key in summary.get("lowest_h", ()):
        points.pop(f"train/clip_h/{key}", None)
    for callback in callbacks if bars or points else ():
        for name in ("vdl_writer", "tb_writer"):
            writer = getattr(callback, name, None)
            if writer is not None:
                for tag, values in bars.items():
                    writer.add_histogram(tag, values, step)
                for tag, value in points.items():
                    writer.add_scalar(tag, value, step)
        wandb = getattr(callback, "_wandb", None)
        if wandb is not None:
            shown = {tag: wandb.Histogram(v) for tag, v in bars.items()}
            wandb.log({**shown, **points, "train/global_step": step})


def _bars_and_points(
    tensors: Mapping[str, Mapping[str, float]],
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return, by tag, the values of groups and those of single tensors."""
    groups: dict[str, list[str]] = {}
    for key in tensors:
        groups.setdefault(_NUMBER.sub("N", key), []).append(key)
    bars: dict[str, np.ndarray] = {}
    points: dict[str, float] = {}
    for group, keys in groups.items():
        for name in _QUANTITIES:
            values = [tensors[key].get(name, math.nan) for key in keys]
            finite = [value for value in values if math.isfinite(value)]
            if len(keys) > 1 and finite:
                bars[f"train/clip_{name}/{group}"] = np.array(finite)
            elif finite:
                points[f"train/clip_{name}/{keys[0]}"] = finite[0]
    return bars, points
