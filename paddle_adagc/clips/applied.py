# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Notices that an optimizer did not make the step that its clip prepared.

Paddle's optimizers call the clip first and update the weights then, unless
``paddle.amp.GradScaler`` found an overflow. They know that on the host, where
they look at ``found_inf``, but tell nobody; an exception says it, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from paddle.optimizer import Optimizer

_PASS = "_create_optimization_pass"
"""The method of Paddle's optimizers that updates the weights."""


def on_skipped_update(take_back: Callable[[], None]) -> None:
    """Call ``take_back`` if the optimizer that is calling makes no update.

    Its next update is watched, no other, and nothing stays with the optimizer.
    Without an optimizer among the callers nothing happens.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_code.co_name != "_apply_optimize":
        frame = frame.f_back
    optimizer = frame.f_locals.get("self") if frame else None
    if not isinstance(optimizer, Optimizer) or _PASS in optimizer.__dict__:
        return

    def update(*args: Any, **kwargs: Any) -> Any:
        del optimizer.__dict__[_PASS]
        try:
            result = getattr(optimizer, _PASS)(*args, **kwargs)
        except BaseException:
            take_back()
            raise
        if optimizer._get_auxiliary_var("found_inf") is True:
            take_back()
        return result

    optimizer.__dict__[_PASS] = update
