# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Clips by the names that configs use."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import paddle
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_choice, check_positive, name_hint
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.agc import ClipGradByAGC
from paddle_adagc.clips.compared import (
    ClipGradByGlobalAdaGC,
    ClipGradByGradientStabilizer,
    ClipGradBySkipStep,
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
``none`` is for optimizers that clip by themselves; ``global_adagc`` and
``tensor_wise`` are the paper's ablations of locality and of adaptivity."""


def make_clip(name: str | None = None, **values: Any) -> ClipGradBase:
    """Make a clip by its name.

    Args:
        name: A key of :data:`CLIPS`, ``"adagc"`` for example, or the import
            path of another clip: ``"my_package.my_clips:MyClip"``.
        **values: Arguments of the clip.

    Returns:
        A new clip, to give to an optimizer as ``grad_clip``.

    Raises:
        ImportError: There is no such module.
        TypeError: A value has the wrong type.
        ValueError: No name or an unknown one, an argument that the clip does
            not take, or a value out of its range.

    Example:
        >>> from paddle_adagc import make_clip
        >>> make_clip("adagc", t_start=200).t_start
        200
    """
    if name is None:
        raise ValueError(f"clip has no name: use one of {[*CLIPS]}")
    check_arguments(name, values)
    return find_clip(name)(**values)


def find_clip(name: str) -> Callable[..., ClipGradBase]:
    """Return what makes the clip of this name, or of this import path."""
    if str(name).lower() in ("globalgc", "global_gc"):
        raise ValueError(f"clip.name {name!r}: it is called global_norm here")
    if ":" not in str(name):
        return CLIPS[check_choice("clip.name", name, CLIPS)]
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute, None)
    if not (isinstance(found, type) and issubclass(found, ClipGradBase)):
        raise ValueError(
            f"clip.name {name!r}: {attribute!r} of {module} is {found!r}, no "
            "class of clips (paddle.nn.clip.ClipGradBase)"
        )
    return found


def check_arguments(name: str, values: Iterable[str]) -> None:
    """Refuse arguments that the clip called ``name`` does not take."""
    known = inspect.signature(find_clip(name)).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
    for key in values:
        if key not in known and not takes_all:
            raise ValueError(
                f"clip {name!r} takes no {key!r}{name_hint(key, known)}"
            )
