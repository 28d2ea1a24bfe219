# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a record says of the optimizer and its clip."""

from __future__ import annotations

import time
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.base import TensorScalingClip


def clip_of(optimizer: Any) -> Any:
    """Return the clip of an optimizer; that of a group where there are some."""
    clip = optimizer._grad_clip
    for group in reversed(optimizer._param_groups):
        if isinstance(group, dict) and group.get("grad_clip") is not None:
            clip = group["grad_clip"]
    while hasattr(clip, "clip") and not isinstance(clip, TensorScalingClip):
        clip = clip.clip  # a MeasuredClip calls it
    return clip


def _settings(optimizer: Any) -> dict[str, float]:
    """Return Adam's constants, as far as the optimizer has them."""
    found = {n: getattr(optimizer, f"_{n}", None) for n in ("beta2", "epsilon")}
    return {name: x for name, x in found.items() if isinstance(x, float)}


def is_warming_up(clip: TensorScalingClip) -> bool:
    """Whether a clip's last step was one of AdaGC's warm-up."""
    if not isinstance(clip, ClipGradByAdaGC):
        return False
    return not clip._is_adaptive(clip.num_steps - 1 - clip._memory.start)


def facts_of(
    optimizer: Any, acting: Any, shadow: ClipGradBase | None
) -> dict[str, Any]:
    """Return the facts of a session, as JSON values."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "clip": _description(acting),
        "shadow": shadow and _description(shadow),
        "optimizer": type(optimizer).__name__,
        **_settings(optimizer),
        "num_ranks": dist.get_world_size(),
        "paddle": paddle.__version__,
    }


def _description(clip: Any) -> str:
    return str(clip) if clip is not None else "none"
