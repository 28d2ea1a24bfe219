# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip's arguments, as its parts see them, and what follows from them."""

from __future__ import annotations

import math
import warnings
from typing import Protocol

from paddle_adagc import rule
from paddle_adagc.clips.gradients import NonFinite
from paddle_adagc.clips.overrides import Overrides


class Settings(Protocol):
    """The arguments of :class:`.ClipGradByAdaGC`."""

    lambda_rel: float
    beta: float
    lambda_abs: float
    t_start: int
    init: str
    strict: bool
    nonfinite: NonFinite
    overrides: Overrides


def votes(settings: Settings) -> bool:
    """Whether warm-up steps that differ from most do not set gamma."""
    return settings.init == "warmup_ema" or not settings.strict


def grows_faster(settings: Settings, index: int) -> bool:
    """Whether ``warmup_ema`` lets gamma grow faster than Algorithm 1 does."""
    if settings.init != "warmup_ema":
        return False
    lowest = settings.overrides.lowest("lambda_rel", settings.lambda_rel)
    return rule.growth_bound(index, settings.t_start, lowest) > lowest


def warn_of_shrinking(settings: Settings) -> None:
    """Warn of factors with which no gamma can grow."""
    effect = (
        "gamma can only shrink, so gradients shrink, too; the paper's value is "
        "1.04"
    )
    if settings.lambda_rel <= 1:
        warnings.warn(
            f"lambda_rel={settings.lambda_rel}: {effect}", stacklevel=3
        )
    for pattern, own in settings.overrides.settings.items():
        factor = (own or {}).get("lambda_rel", math.inf)
        if factor <= 1:
            warnings.warn(
                f"lambda_rel={factor} for {pattern!r}: {effect}", stacklevel=3
            )
