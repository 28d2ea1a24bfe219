# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who calls a clip: Paddle hands over gradients alone."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def is_called_by(function: Callable[..., Any]) -> bool:
    """Whether a Python function is among the callers."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False
