# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's numbers in a Trainer's logs, and histograms of its tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.parallel.names import without_indexes


def warm_up_end(clip: ClipGradBase | None, state: Any) -> int:
    """Return the Trainer's step at which the warm-up ends; 0: it is over."""
    left = clip.warmup_left if isinstance(clip, ClipGradByAdaGC) else 0
    return state.global_step + left if left else 0


def clip_logs(summary: Mapping[str, Any], args: Any) -> dict[str, float]:
    """Name the numbers of a summary as they stand in a log.

    Dashboards read the global norm under the Trainer's names for it:
    PaddleFormers' and PaddleFleet's ``global_norm``, ERNIE's
    ``global_grad_norm``. ``args`` are the Trainer's.
    """
    logs: dict[str, float] = {}
    if "global_grad_norm" in summary:
        norm = _short(summary["global_grad_norm"])
        if not type(args).__module__.startswith("paddlenlp."):
            logs["global_norm"] = norm
        if hasattr(args, "log_global_grad_norm"):
            logs["global_grad_norm"] = norm
    for name, value in summary.items():
        if name not in ("step", "lowest_h", "tensors"):
            is_count = isinstance(value, int)
            logs[f"clip_{name}"] = value if is_count else _short(value)
    return logs


def _short(value: float) -> float:
    """Round to 4 digits."""
    return float(f"{value:.4g}")


_LOWEST = "train/clip_lowest_h"


def add_histograms(
    callbacks: Iterable[Any], summary: Mapping[str, Any], step: int
) -> None:
    """Write histograms of norm, gamma and h over the layers, and a table.

    Tensors whose names differ in numbers alone are one group: the tag
    ``clip_norm/layers.N.mlp.up.weight`` holds a value per layer, of an MoE one
    per layer and expert. A tensor that is a group alone gets a curve instead.
    Values that are not finite are left out. The table ``train/clip_lowest_h``
    has the tensors of the summary's ``lowest_h``. Of a Trainer's callbacks the
    writers for VisualDL, TensorBoard and Weights & Biases are used.
    """
    found = _by_tag(summary.get("tensors", {}))
    lowest = [(k, _short(h)) for k, h in summary.get("lowest_h", {}).items()]
    rows = [("tensor", "h"), ("---", "---:"), *lowest]
    table = "\n".join(f"| {key} | {h} |" for key, h in rows)
    for callback in callbacks if found else ():
        for name in ("vdl_writer", "tb_writer"):
            writer = getattr(callback, name, None)
            if writer is not None:
                for tag, value in found.items():
                    is_one = isinstance(value, float)
                    add = writer.add_scalar if is_one else writer.add_histogram
                    add(tag, value, step)
                if lowest:
                    writer.add_text(_LOWEST, table, step)
        wandb = getattr(callback, "_wandb", None)
        if wandb is not None:
            shown = {
                tag: value
                if isinstance(value, float)
                else wandb.Histogram(value)
                for tag, value in found.items()
            }
            if lowest:
                shown[_LOWEST] = wandb.Table(["tensor", "h"], [*lowest])
            wandb.log({**shown, "train/global_step": step})


def _by_tag(
    tensors: Mapping[str, Mapping[str, float]],
) -> dict[str, float | np.ndarray]:
    """Return the values of each group, and the value of each single tensor."""
    groups: dict[str, list[str]] = {}
    for key in tensors:
        groups.setdefault(without_indexes(key), []).append(key)
    found: dict[str, float | np.ndarray] = {}
    for group, keys in groups.items():
        for name in ("norm", "gamma", "h"):
            values = [tensors[key].get(name, math.nan) for key in keys]
            finite = [value for value in values if math.isfinite(value)]
            if len(keys) > 1 and finite:
                found[f"train/clip_{name}/{group}"] = np.array(finite)
            elif finite:
                found[f"train/clip_{name}/{keys[0]}"] = finite[0]
    return found
