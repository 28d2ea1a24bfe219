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
"""Reading a clip's saved state, and refusing what is not one."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import paddle

Values = dict[str, dict[str, float]]
"""Name of a kept quantity (``"gamma"``) -> key -> number."""


def read_clip_state(
    state: Any, names: Collection[str], arguments: Collection[str], owner: str
) -> tuple[int, Values, dict[str, Any]]:
    """Parts of a clip's ``state_dict()``: step, kept values, arguments.

    Args:
        state: ``step``, ``config``, and one dict of numbers per name.
        names: What the clip keeps.
        arguments: Those of the clip's constructor.
        owner: The clip's class, for messages.

    Raises:
        TypeError: ``state`` is not a dict.
        ValueError: A key is missing, or one or an argument is another clip's;
            ``step`` is not a count, or a value is not one number.
    """
    if not isinstance(state, dict):
        raise TypeError(f"the state is a {type(state).__name__}, not a dict")
    for name in ("step", *names, "config"):
        if name not in state:
            raise ValueError(f"the state lacks {name!r}: it has {[*state]}")
    foreign = [name for name in state if name not in ("step", *names, "config")]
    if foreign:
        raise ValueError(
            f"the state holds {foreign}, which {owner} does not keep: it is "
            "another clip's"
        )
    step, config = state["step"], state["config"]
    if not isinstance(step, numbers.Integral) or step < 0:
        raise ValueError(f"the state's step={step!r} is not a count of steps")
    for name in (*names, "config"):
        if not isinstance(state[name], dict):
            raise ValueError(f"the state's {name} must be a dict")
    foreign = [name for name in config if name not in arguments]
    if foreign:
        raise ValueError(
            f"the state was made by a clip with the arguments {foreign}, which "
            f"{owner} does not have: it is another clip's"
        )
    values = {
        name: {k: _number(name, k, v) for k, v in state[name].items()}
        for name in names
    }
    return int(step), values, config


def check_gamma(gamma: Mapping[str, float]) -> None:
    """Refuse a reference norm that would freeze its tensor.

    Raises:
        ValueError: One is not positive.
    """
    for key, value in gamma.items():
        if not value > 0:
            raise ValueError(
                f"gamma of {key!r} is {value}: it must be positive (inf for a "
                "tensor without a norm so far)"
            )


def check_deviation(
    deviation: Mapping[str, float], gamma: Mapping[str, float]
) -> None:
    """Refuse what is no mean absolute deviation of these tensors' norms.

    Raises:
        ValueError: One is negative or not finite, or the keys differ.
    """
    if deviation.keys() != gamma.keys():
        raise ValueError("the state's gamma and deviation have other keys")
    for key, value in deviation.items():
        if not 0 <= value < float("inf"):
            raise ValueError(
                f"deviation of {key!r} is {value}: it must be finite and not "
                "negative"
            )


def warn_of_other_arguments(
    mine: Mapping[str, Any], loaded: Mapping[str, Any]
) -> None:
    """Say which arguments a loaded state was made with other values of."""
    differing = [
        f"{name}={mine[name]!r} (state: {value!r})"
        for name, value in loaded.items()
        if name in mine and mine[name] != value
    ]
    if differing:
        warnings.warn(
            "the loaded state was made with other arguments than this "
            f"clip goes on with: {', '.join(differing)}",
            stacklevel=3,
        )


def as_array(value: Any) -> np.ndarray:
    """A saved number as NumPy has it; bfloat16, which it has not, as float32.

    Raises:
        ValueError: uint16, as which Paddle gives the bits of a bfloat16.
    """
    if isinstance(value, paddle.Tensor) and value.dtype == paddle.bfloat16:
        value = value.astype("float32")
    array = np.asarray(value)
    if array.dtype == np.uint16:
        raise ValueError(
            f"{array} is of dtype uint16, perhaps the bits of a bfloat16: cast "
            "it to float32 before it becomes an array"
        )
    return array


def _number(name: str, key: str, value: Any) -> float:
    array = as_array(value)
    if array.size != 1 or not np.issubdtype(array.dtype, np.number):
        raise ValueError(
            f"{name} of {key!r} is not one number: shape "
            f"{list(array.shape)}, dtype {array.dtype}"
        )
    return float(array.reshape(()))
