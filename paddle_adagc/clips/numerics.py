# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
