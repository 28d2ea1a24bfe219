# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keeps Paddle's search for Inf and NaN out of the clips."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import paddle
from paddle.base import core

_FLAG = "FLAGS_check_nan_inf"
_globals: Any = core.globals  # without a stub; get_flags() takes 12 us


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Suspend ``FLAGS_check_nan_inf``, which ``enable_tensor_checker`` sets.

    A clip works with infinity (no norm so far) and 0/0 on purpose, and treats
    what gradients hold of it. Everything outside of the clip stays checked.
    """
    if not _globals()[_FLAG]:
        yield
        return
    paddle.set_flags({_FLAG: False})
    try:
        yield
    finally:
        paddle.set_flags({_FLAG: True})
