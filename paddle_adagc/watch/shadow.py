# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip that follows the gradients of another, and leaves them as they are."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import paddle.distributed as dist
from paddle.distributed.auto_parallel.process_mesh import (
    get_unique_process_mesh_map,
)
from paddle.nn import ClipGradByNorm, Layer
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.parallel.layout import sharding_wrapper
from paddle_adagc.parallel.meshes import added_up


def default_shadow(acting: ClipGradBase | None) -> ClipGradByAdaGC:
    """Make the AdaGC that follows a run under another clip.

    Its warm-up has the global threshold of that clip, so that gamma starts from
    the norms that the run lets through; without one from the norms as they are.
    """
    inner = unwrapped(acting)
    threshold = getattr(inner, "clip_norm", None)
    if threshold is None or isinstance(inner, ClipGradByNorm):
        threshold = math.inf
    return ClipGradByAdaGC(lambda_abs=float(threshold), init="warmup_ema")


def check_shadow(clip: ClipGradBase) -> ClipGradByAdaGC:
    """Return a clip of this package that can follow gradients.

    Raises:
        TypeError: It is no clip of this package.
        ValueError: It stops at Inf and NaN.
    """
    if not isinstance(clip, ClipGradByAdaGC):
        raise TypeError(
            f"shadow={clip!r}: give a clip of this package whose rule needs "
            "the norms alone, such as ClipGradByAdaGC()"
        )
    if clip.nonfinite == "raise":
        raise ValueError(
            f"shadow={clip!r} stops the run at Inf and NaN: give "
            "nonfinite='zero'"
        )
    return clip


def make_shadow(clip: ClipGradBase) -> ClipGradByAdaGC:
    """Let a clip of this package follow gradients without scaling any.

    Raises:
        TypeError, ValueError: See :func:`check_shadow`.
    """
    follower = check_shadow(clip)
    follower._follows = True
    return follower


def whole(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return pairs with copies of gradients that a mesh holds as summands.

    So that a clip which only measures leaves them as they are.
    """
    if not get_unique_process_mesh_map():
        return [*pairs]
    return [(p, g if g is None else added_up(g)) for p, g in pairs]


def unwrapped(clip: Any) -> Any:
    """Return the clip that fleet's own holds."""
    inner = getattr(clip, "_clip", None)
    is_wrapper = not isinstance(clip, ClipGradByAdaGC) and inner is not None
    return unwrapped(inner) if is_wrapper else clip


def find_model(parameters: Iterable[Any]) -> Layer | None:
    """Find the layer that holds an optimizer's parameters, by their names.

    It is looked for among all objects of this process: a training loop that
    knows nothing of this package does not name it. None: no layer has all.
    """
    # Stage 3 of group_sharded_parallel lets a step work on slices.
    names = {p.name.removeprefix("slice@") for p in parameters}
    best: tuple[tuple[int, int], Layer] | None = None
    for thing in gc.get_objects():
        if not issubclass(type(thing), Layer):  # reads no attribute of it
            continue
        try:
            mine = {p.name for p in thing.parameters()}
        except Exception:  # half made
            continue
        if names and names <= mine:
            num_layers = sum(1 for _ in thing.sublayers(include_self=True))
            size = (-len(mine), num_layers)  # a wrapper is looked through
            if best is None or size > best[0]:
                best = (size, thing)
    return best[1] if best else None


def bind(
    clip: ClipGradByAdaGC, model: Layer | None, parameters: Sequence[Any]
) -> None:
    """Bind a shadow to the model, or to the one that is found."""
    if clip._progress.tensors.is_bound or clip.num_steps:
        return
    if model is None or dist.get_world_size() > 1:
        found = find_model(parameters)
        # The clip learns the ranks from group_sharded_parallel's wrapper.
        if model is None or (found is not None and sharding_wrapper(found)):
            model = found
    if model is None:
        warnings.warn(
            "no layer holds all of the optimizer's parameters: the record "
            "names them as Paddle does, linear_0.w_0",
            stacklevel=4,
        )
    else:
        clip.bind(model)
