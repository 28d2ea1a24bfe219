# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keeps two of Paddle's tools out of clips and optimizers.

``paddle.jit.to_static`` simulates the bytecode of every function that a
training step calls, and fails in ours. Without the simulation they run between
the step's compiled parts, as Paddle's own clips and optimizers do. The search
for Inf and NaN stops at the infinities that a clip works with on purpose.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import paddle
from paddle.base import core

P = ParamSpec("P")
T = TypeVar("T")

_core: Any = core  # without a stub
_CAN_SIMULATE = hasattr(core, "set_eval_frame")
if _CAN_SIMULATE:
    _core.eval_frame_skip_file_prefix((__file__,))


def eager(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function, and all that it calls, as it is."""
    if not _CAN_SIMULATE:
        return function

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        simulator = _core.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _core.set_eval_frame(simulator)

    return run


_FLAG = "FLAGS_check_nan_inf"


def unchecked(function: Callable[P, T]) -> Callable[P, T]:
    """Suspend ``FLAGS_check_nan_inf``, which ``enable_tensor_checker`` sets.

    A clip works with infinity (no norm so far) and 0/0 on purpose, and treats
    what gradients hold of it. Everything outside of the clip stays checked.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if not _core.globals()[_FLAG]:  # get_flags() takes 12 us
            return function(*args, **kwargs)
        paddle.set_flags({_FLAG: False})
        try:
            return function(*args, **kwargs)
        finally:
            paddle.set_flags({_FLAG: True})

    return run
