# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Clips by the names that configs use."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import paddle
from paddle.nn.clip import ClipGradBase

from adagc_lab.clips.agc import ClipGradByAGC
from adagc_lab.clips.compared import (
    ClipGradByGlobalAdaGC,
    ClipGradByGradientStabilizer,
    ClipGradBySkipStep,
    ClipGradByTensorWiseGC,
    ClipGradByZClip,
    ComparedClip,
)
from adagc_lab.clips.starts import STARTS, AdaGCStart
from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.checks import check_choice, check_positive, name_hint

__all__ = ["CLIPS", "ComparedClip", "make_clip"]


class NoClip(ClipGradBase):
    """Leaves gradients as they are."""

    def __str__(self) -> str:
        """Name for logs."""
        return "no gradient clipping"

    def _dygraph_clip(self, params_grads: Any) -> Any:
        return params_grads


def _global_norm(lambda_abs: float = 1.0) -> ClipGradBase:
    bound = check_positive("lambda_abs", lambda_abs)
    return paddle.nn.ClipGradByGlobalNorm(bound)


def _value(lambda_abs: float = 1e-3) -> ClipGradBase:
    return paddle.nn.ClipGradByValue(check_positive("lambda_abs", lambda_abs))


CLIPS: dict[str, Callable[..., ClipGradBase]] = {
    "adagc": ClipGradByAdaGC,
    "global_norm": _global_norm,
    "value": _value,
    "none": NoClip,
    "agc": ClipGradByAGC,
    "zclip": ClipGradByZClip,
    "global_adagc": ClipGradByGlobalAdaGC,
    "tensor_wise": ClipGradByTensorWiseGC,
    "skip_step": ClipGradBySkipStep,
    "gradient_stabilizer": ClipGradByGradientStabilizer,
}
"""``global_norm`` (GlobalGC) and ``value`` (ClipByValue) are Paddle's own;
``none`` is for optimizers that clip by themselves."""


def make_clip(name: str | None = None, **values: Any) -> ClipGradBase:
    """Make a clip by its name; ``adagc`` also takes the ablation's starts.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: No name or an unknown one, an argument that the clip does
            not take, or a value out of its range.
    """
    if name is None:
        raise ValueError(f"clip has no name: use one of {[*CLIPS]}")
    if str(name).lower() in ("globalgc", "global_gc"):
        raise ValueError(f"clip.name {name!r}: it is called global_norm here")
    make = CLIPS[check_choice("clip.name", name, CLIPS)]
    if name == "adagc" and values.get("init") in STARTS:
        make = AdaGCStart
    known = inspect.signature(make).parameters
    for key in values:
        if key not in known:
            raise ValueError(
                f"clip {name!r} takes no {key!r}{name_hint(key, known)}"
            )
    return make(**values)
