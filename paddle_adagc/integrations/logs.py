# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's numbers in a Trainer's logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.integrations.arguments import library_of


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
        if library_of(args) != "paddlenlp":
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
