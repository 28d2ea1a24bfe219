# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Call functions around every update of every optimizer of Paddle."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from paddle_adagc.record.losses import see_losses

_WHO = "_adagc_replaced_at"


def watch(
    optimizer: Any,
    before: Callable[[Any], Any],
    after: Callable[[Any, Any], None],
) -> None:
    """Call functions around each update of Paddle's class and its subclasses.

    An optimizer makes one per step, or one per parameter group.
    ``before(optimizer)`` runs before the gradients are clipped; what it returns
    is the second argument of ``after``, which does not run if the update fails.
    Under fleet they get the innermost optimizer. Once there is an optimizer,
    the scalars that are differentiated are seen.
    """
    active: set[int] = set()

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if id(self) in active:  # super()'s method
                return method(self, *args, **kwargs)
            param_group = sys._getframe(1).f_locals.get("param_group")
            active.add(id(self))
            try:
                observed = vars(self).get(method.__name__)
                given = before(self)
                now = vars(self).get(method.__name__)
                if now is observed:
                    result = method(self, *args, **kwargs)
                else:  # a record begins with this update
                    result = now(*args, **kwargs)
                after(self, given)
            finally:
                active.discard(id(self))
                del param_group  # a clip looks for it here
            return result

        return call

    def change(cls: Any) -> None:
        # LBFGS updates in its step, and calls no clip.
        name = "step" if cls.__name__ == "LBFGS" else "_apply_optimize"
        if name in vars(cls):
            setattr(cls, name, watched(vars(cls)[name]))

    def init_subclass(cls: Any, **kwargs: Any) -> None:
        super(optimizer, cls).__init_subclass__(**kwargs)
        change(cls)

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        see_losses()  # AdamW leaves Optimizer.__init__ out
        return object.__new__(cls)

    change(optimizer)
    optimizer.__new__ = new
    optimizer.__init_subclass__ = classmethod(init_subclass)
    optimizer._grad_clip = property(_get_clip, _set_clip)


def _get_clip(self: Any) -> Any:
    try:
        return vars(self)["_grad_clip"]
    except KeyError as error:
        raise AttributeError("_grad_clip") from error


def _set_clip(self: Any, clip: Any) -> None:
    """Remember the line that replaces a clip of ours."""
    if is_ours(vars(self).get("_grad_clip")) and not is_ours(clip):
        frame = sys._getframe(1)
        while frame.f_code.co_name == "__setattr__" and frame.f_back:
            frame = frame.f_back  # out of a wrapper
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        vars(self)[_WHO] = f"{os.path.relpath(file)}:{frame.f_lineno} ({name})"
    vars(self)["_grad_clip"] = clip


def replaced_at(optimizer: Any) -> str:
    """Say which line replaced an optimizer's clip, if it is known."""
    from paddle_adagc.integrations.optimizer import innermost

    place = vars(innermost(optimizer)).get(_WHO)
    return f", since {place} replaced it" if place else ""


def clip_of(optimizer: Any) -> Any:
    """Return the clip of an optimizer, or of its first parameter group."""
    groups, clip = optimizer._param_groups, optimizer._grad_clip
    if groups and isinstance(groups[0], dict):
        clip = groups[0].get("grad_clip")
    return clip


def is_ours(clip: Any) -> bool:
    """Tell whether a clip counts its steps, as those of this package do."""
    module = sys.modules.get("paddle_adagc.clips.base")
    return module is not None and isinstance(clip, module.TensorScalingClip)


def calls_of(clip: Any) -> tuple[int, int]:
    """Return how many steps a clip of ours made, and how often it was called.

    A parameter group that is frozen calls it, and is no step.
    """
    return (clip.num_steps, clip._num_calls) if is_ours(clip) else (0, 0)


def was_skipped(optimizer: Any) -> bool:
    """Tell whether the step had no gradient, or an overflow ended it."""
    return optimizer._get_auxiliary_var("found_inf") is True or not any(
        parameter.grad is not None
        or getattr(parameter, "main_grad", None) is not None
        for parameter in _parameters(optimizer)
    )


def described(clip: Any) -> str:
    """Describe a clip; Paddle's own do not name their class."""
    name, text = type(clip).__name__, str(clip)
    return text if clip is None or text.startswith(name) else f"{name} ({text})"


def shown(optimizer: Any) -> str:
    """Name an optimizer in a message."""
    number = len(_parameters(optimizer))
    return f"{type(optimizer).__name__} of {number} parameters"


def _parameters(optimizer: Any) -> list[Any]:
    # Paddle may be half imported where this file is: no import for it.
    groups = optimizer._param_groups or []
    found: list[Any] = []
    for group in groups:
        found += group["params"] if isinstance(group, dict) else [group]
    return found
