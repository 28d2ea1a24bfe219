# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The optimizer inside of wrappers, and its clip."""

from __future__ import annotations

import warnings
from typing import Any

from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2 as stage_2,
)
from paddle.incubate import LookAhead
from paddle.nn.clip import ClipGradBase, ClipGradByNorm

_ACCURATE = ("Reproducible", "HFBitexact")  # clips of PaddleFleet


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that the wrappers hold.

    Those of fleet, ``shard_optimizer`` and ``group_sharded_parallel``; and
    ``paddle.incubate.LookAhead``.
    """
    while (inner := inner_optimizer(optimizer)) is not None:
        optimizer = inner
    return optimizer


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer in a wrapper; None: it is none."""
    if isinstance(optimizer, stage_2.GroupShardedOptimizerStage2):
        return optimizer._optim
    if isinstance(optimizer, LookAhead):
        return optimizer.inner_optimizer
    return getattr(optimizer, "_inner_opt", None)


def put_into_optimizer(optimizer: Any, clip: ClipGradBase | None) -> None:
    """Let an optimizer clip with ``clip``; fleet's wrappers are looked into.

    A clip that works as another framework's, bit by bit, is not replaced
    without a warning.
    """
    optimizer = innermost(optimizer)
    kind = type(optimizer._grad_clip).__name__
    if clip is not optimizer._grad_clip and kind.startswith(_ACCURATE):
        warnings.warn(f"{clip!r} replaces {kind}", stacklevel=4)
    optimizer._grad_clip = clip
    for group in optimizer._param_groups:
        if isinstance(group, dict):
            group["grad_clip"] = clip


def threshold_of(clip: Any) -> float | None:
    """Return a clip's bound of the global norm; None: it has no such bound."""
    if isinstance(clip, ClipGradByNorm):  # of each tensor's
        return None
    return getattr(clip, "clip_norm", None)


def clip_of(optimizer: Any) -> Any:
    """Return the clip of an optimizer, or of its first parameter group."""
    optimizer = innermost(optimizer)
    first: Any = next(iter(optimizer._param_groups), None)
    is_group = isinstance(first, dict)
    return first.get("grad_clip") if is_group else optimizer._grad_clip
