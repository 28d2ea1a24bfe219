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
"""What a clip's ``state_dict()`` must hold."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np


def read_clip_state(state: Any) -> tuple[int, dict[str, float], dict[str, Any]]:
    """Parts of a clip's ``state_dict()``: step, gamma per key, arguments.

    Raises:
        TypeError: ``state`` is not a dict.
        ValueError: A key is missing, ``step`` is not a count, or a gamma is
            not one positive number.
    """
    if not isinstance(state, dict):
        raise TypeError(f"the state is a {type(state).__name__}, not a dict")
    for name in ("step", "gamma", "config"):
        if name not in state:
            raise ValueError(f"the state lacks {name!r}: it has {[*state]}")
    step, gamma, config = state["step"], state["gamma"], state["config"]
    if not isinstance(step, numbers.Integral) or step < 0:
        raise ValueError(f"the state's step={step!r} is not a count of steps")
    if not isinstance(gamma, dict) or not isinstance(config, dict):
        raise ValueError("the state's gamma and config must be dicts")
    return int(step), {k: _gamma(k, v) for k, v in gamma.items()}, config


def _gamma(key: str, value: Any) -> float:
    array = np.asarray(value)
    if array.size != 1 or not np.issubdtype(array.dtype, np.number):
        raise ValueError(
            f"gamma of {key!r} is not one number: shape {list(array.shape)}, "
            f"dtype {array.dtype}"
        )
    checked = float(array.reshape(()))
    if not checked > 0:
        raise ValueError(
            f"gamma of {key!r} is {checked}: it must be positive (inf for a "
            "tensor without a norm so far)"
        )
    return checked
