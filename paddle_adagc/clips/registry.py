# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Clips by the names that configs use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import paddle
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_choice, name_hint
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.agc import ClipGradByAGC
from paddle_adagc.clips.compared import (
    ClipGradByGlobalAdaGC,
    ClipGradByTensorWiseGC,
    ClipGradByZClip,
)


class NoClip(ClipGradBase):
    """Leaves gradients as they are; the record still measures them."""

    def __str__(self) -> str:
        """Name for logs."""
        return "no gradient clipping"

    def _dygraph_clip(self, params_grads: Any) -> Any:
        return params_grads


def _global_norm(lambda_abs: float = 1.0) -> ClipGradBase:
    return paddle.nn.ClipGradByGlobalNorm(lambda_abs)


def _value(lambda_abs: float = 1e-3) -> ClipGradBase:
    return paddle.nn.ClipGradByValue(max=lambda_abs)


CLIPS: dict[str, Callable[..., ClipGradBase]] = {
    "adagc": ClipGradByAdaGC,
    "global_norm": _global_norm,
    "value": _value,
    "none": NoClip,
    "agc": ClipGradByAGC,
    "zclip": ClipGradByZClip,
    "global_adagc": ClipGradByGlobalAdaGC,
    "tensor_wise": ClipGradByTensorWiseGC,
}
"""``global_norm`` (GlobalGC) and ``value`` (ClipByValue) are Paddle's own;
``none`` is for optimizers that clip by themselves; ``global_adagc`` and
``tensor_wise`` are the paper's ablations of locality and of adaptivity."""


def make_clip(name: str | None = None, **values: Any) -> ClipGradBase:
    """Make a clip by its name.

    Args:
        name: A key of :data:`CLIPS`, ``"adagc"`` for example.
        **values: Arguments of the clip.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: No name or an unknown one, an argument that the clip does
            not take, or a value out of its range.
    """
    if name is None:
        raise ValueError(f"clip has no name: use one of {[*CLIPS]}")
    check_arguments(check_choice("clip.name", name, CLIPS), values)
    return CLIPS[name](**values)


def check_arguments(name: str, values: Iterable[str]) -> None:
    """Refuse arguments that the clip called ``name`` does not take."""
    known = inspect.signature(CLIPS[name]).parameters
    for key in values:
        if key not in known:
            raise ValueError(
                f"clip {name!r} takes no {key!r}{name_hint(key, known)}"
            )
