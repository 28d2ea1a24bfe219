# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The arguments of ``ClipGradByAdaGC``, and what each of them may be.

The standard library is enough here: ``adagc-run`` checks them without Paddle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

from paddle_adagc.checks import (
    check_bool,
    check_choice,
    check_decay,
    check_integer,
    check_positive,
    suggestion,
)

Init = Literal["warmup_min", "warmup_ema"]
NonFinite = Literal["zero", "raise", "propagate"]

ByPattern = dict[str, dict[str, float] | None]
"""Pattern of a tensor's key -> its own arguments; None: it is not clipped."""

_OF_TENSORS = {"lambda_rel": check_positive, "beta": check_decay}
"""Arguments that ``overrides`` can set for single tensors."""


def check_overrides(name: str, value: Any) -> ByPattern:
    """Return ``overrides`` with all its numbers checked."""
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} must be a dict of pattern -> values, got {value!r}"
        )
    return {
        pattern: _check_values(f"{name}[{pattern!r}]", pattern, values)
        for pattern, values in value.items()
    }


def _check_values(
    where: str, pattern: Any, values: Any
) -> dict[str, float] | None:
    names = ", ".join(_OF_TENSORS)
    try:
        re.compile(pattern + "")  # a state holds it as text
    except (re.error, TypeError) as error:
        raise ValueError(
            f"{where}: the key is no regular expression: {error}"
        ) from error
    if values is None:
        return None
    if not isinstance(values, Mapping) or not values:
        raise TypeError(
            f"{where} must be None or a dict of {names}, got {values!r}"
        )
    for name in values:
        if name not in _OF_TENSORS:
            hint = suggestion(name, _OF_TENSORS)
            raise ValueError(f"{where} takes {names}, not {name!r}{hint}")
    return {
        name: _OF_TENSORS[name](f"{name} of {where}", value)
        for name, value in values.items()
    }


def _check_threshold(name: str, value: Any) -> float:
    return math.inf if value == math.inf else check_positive(name, value)


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "lambda_rel": check_positive,
    "beta": check_decay,
    "lambda_abs": _check_threshold,
    "t_start": partial(check_integer, minimum=0),
    "init": partial(check_choice, choices=get_args(Init)),
    "strict": check_bool,
    "nonfinite": partial(check_choice, choices=get_args(NonFinite)),
    "overrides": check_overrides,
}
"""Argument -> function of its name and value, which returns what is meant."""

FIXED = ("init", "strict", "overrides")
"""Arguments on which a state depends: they stay as they are."""
