# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a record says of the optimizer and its clip."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.tensors import Tensors
from paddle_adagc.watch.shadow import unwrapped


class ClipPerGroup:
    """Stands for the clips of parameter groups that differ."""

    def __init__(self, clips: Sequence[Any]) -> None:
        self._clips = clips

    def __repr__(self) -> str:
        """Name the clip of each group."""
        return "clips of groups: " + ", ".join(map(_description, self._clips))


def clips_of(optimizer: Any) -> list[Any]:
    """Return the clip of each parameter group; Paddle calls it for each."""
    groups = [g for g in optimizer._param_groups if isinstance(g, dict)]
    clips = [group.get("grad_clip") for group in groups]
    return clips or [optimizer._grad_clip]


def acting_clip(clips: Sequence[Any]) -> Any:
    """Return the clip of all groups, or what stands for several."""
    first = clips[0]
    same = all(_is_same(unwrapped(clip), unwrapped(first)) for clip in clips)
    return first if same else ClipPerGroup(clips)


def _is_same(clip: Any, other: Any) -> bool:
    if clip is other or clip is None or isinstance(clip, ClipGradByAdaGC):
        return clip is other
    return type(clip) is type(other) and vars(clip) == vars(other)


def groups_of(
    optimizer: Any, tensors: Tensors | None, names: Mapping[str, str]
) -> dict[str, int]:
    """Return the parameter group of each recorded tensor, where there are some.

    Args:
        optimizer: The innermost one.
        tensors: Those of the clip that is recorded; None: nothing is.
        names: The record's names of tensors, by the clip's keys.
    """
    groups = [g for g in optimizer._param_groups if isinstance(g, dict)]
    found: dict[str, int] = {}
    if tensors is None or len(groups) < 2:
        return found
    for index, group in enumerate(groups):
        for parameter in group["params"]:
            with contextlib.suppress(ValueError):  # part of a buffer
                for key in tensors.keys_of(parameter):
                    found[names.get(key, key)] = index
    return found


def _settings(optimizer: Any) -> dict[str, float]:
    """Return Adam's constants, as far as the optimizer has them."""
    found = {n: getattr(optimizer, f"_{n}", None) for n in ("beta2", "epsilon")}
    return {name: x for name, x in found.items() if isinstance(x, float)}


def is_warming_up(clip: ClipGradByAdaGC) -> bool:
    """Whether a clip's last step was one of its warm-up."""
    return clip.num_steps - 1 - clip._progress.memory.start < clip.t_start


def facts_of(
    optimizer: Any, acting: Any, shadow: ClipGradBase | None, model: Any
) -> dict[str, Any]:
    """Return the facts of a session, as JSON values."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "clip": _description(acting),
        "shadow": shadow and _description(shadow),
        "optimizer": type(optimizer).__name__,
        "optimizer_name": getattr(optimizer, "_name", None),
        "model": model and type(model).__name__,
        "model_name": model and model.full_name(),
        **_settings(optimizer),
        "num_ranks": dist.get_world_size(),
        "paddle": paddle.__version__,
    }


def _description(clip: Any) -> str:
    return str(unwrapped(clip)) if clip is not None else "none"
