# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What AdaGC would have done with recorded norms. NumPy alone.

The rule is a function of norms, so they answer without training. It is an open
loop: under AdaGC the weights, and so the later norms, would have been others.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import numpy as np

from paddle_adagc.checks import (
    check_bool,
    check_choice,
    check_decay,
    check_integer,
    check_positive,
)

_FULL_SUPPORT = 10.0
_FALL, _RISE = -math.log(4.0), math.log(10.0)
_OWN_FALL, _OWN_RISE = 1 / 20, 100.0
"""As in ``rule.py``, which a test compares."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Arguments of AdaGC that a replay follows: see ``ClipGradByAdaGC``."""

    lambda_rel: float = 1.04
    """By which a norm may exceed gamma."""

    beta: float = 0.99
    """Smoothing of gamma, in [0, 1)."""

    lambda_abs: float = 1.0
    """Global norm allowed in the warm-up."""

    t_start: int = 100
    """Steps of the warm-up."""

    init: str = "warmup_min"
    """How gamma starts."""

    strict: bool = False
    """Whether every warm-up step enters the minimum."""

    def __post_init__(self) -> None:
        """Refuse values out of their range."""
        check_positive("lambda_rel", self.lambda_rel)
        check_decay("beta", self.beta)
        if self.lambda_abs != math.inf:
            check_positive("lambda_abs", self.lambda_abs)
        check_integer("t_start", self.t_start, 0)
        check_choice("init", self.init, ("warmup_min", "warmup_ema"))
        check_bool("strict", self.strict)

    @classmethod
    def of(cls, text: str, known: Settings | None = None) -> Settings:
        """Parse a text such as ``lambda_rel=1.2,beta=0.98``.

        Args:
            text: Some of the arguments.
            known: The others; default: AdaGC's defaults.

        Raises:
            TypeError, ValueError: An argument is unknown, or a value wrong.
        """
        values: dict[str, Any] = {}
        for part in text.split(",") if text else []:
            name, has_value, value = part.partition("=")
            name = name.strip().replace("-", "_")
            if not has_value or name not in _NAMES:
                raise ValueError(
                    f"{part!r}: write lambda_rel=1.2,beta=0.9; the arguments "
                    f"are {', '.join(_NAMES)}"
                )
            values[name] = _value(value.strip())
        return dataclasses.replace(known or cls(), **values)

    @classmethod
    def of_clip(cls, text: object) -> Settings | None:
        """Return the settings in an AdaGC's ``repr``; None of another clip.

        Overrides are not followed: they are expressions that a stranger may
        have written.
        """
        if not isinstance(text, str) or not text.startswith("ClipGradByAdaGC("):
            return None
        found = re.findall(r"\b(\w+)=([\w.+'-]+)(?=[,)])", text)
        given = [f"{name}={x}" for name, x in found if name in _NAMES]
        try:
            return cls.of(",".join(given))
        except (TypeError, ValueError):
            return None


_NAMES = [field.name for field in dataclasses.fields(Settings)]


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "inf": math.inf}
    try:
        return words.get(text.lower()) or json.loads(text.lower())
    except ValueError:
        return text.strip("'")


@dataclasses.dataclass(frozen=True)
class Replay:
    """AdaGC's factors and state, each float32 ``[num_rows, num_tensors]``."""

    h: np.ndarray
    """Factor of each gradient."""

    gamma: np.ndarray
    """After the step; Inf until a norm was observed."""


def replay(
    norms: np.ndarray,
    settings: Settings = Settings(),
    gamma: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> Replay:
    """Let AdaGC see recorded norms, a row per step.

    Args:
        norms: ``[num_rows, num_tensors]`` before any clip, as
            ``read_record(...).tensors("norm")``; 0 and NaN are no gradient,
            Inf is one with Inf or NaN, which AdaGC makes 0.
        settings: Arguments of AdaGC.
        gamma: Where gamma starts, ``[num_tensors]``; the rule is then past its
            warm-up. Default: from nothing, with the warm-up.
        steps: Of the rows, int64 ``[num_rows]``, counted from 0 by the clip,
            if gamma is given: ``warmup_ema`` follows by them.

    Returns:
        What it would have done in each step.

    Example:
        >>> import numpy as np
        >>> from paddle_adagc.watch.replay import Settings, replay
        >>> norms = np.array([[1.0], [1.0], [8.0]])
        >>> (replay(norms, Settings(t_start=2)).h < 1).tolist()
        [[False], [False], [True]]
    """
    table = np.nan_to_num(np.asarray(norms, np.float64), nan=0.0, posinf=np.inf)
    num = table.shape[1]
    at = np.arange(len(table))
    now = np.full(num, np.inf)
    if gamma is not None:
        at = np.maximum(at if steps is None else steps, settings.t_start)
        known = np.isfinite(gamma) & (gamma > 0)
        now = np.where(known, gamma, np.inf).astype(np.float64)
    support = np.zeros(num)
    found = Replay(np.ones(table.shape, "f4"), np.ones(table.shape, "f4"))
    with np.errstate(all="ignore"):
        for i, (step, row) in enumerate(zip(at.tolist(), table, strict=True)):
            if step < settings.t_start:
                h, now, support = _warm_up(row, now, support, step, settings)
            else:
                h, now = _adapt(row, now, step, settings)
            found.h[i], found.gamma[i] = h, now
    return found


def _warm_up(
    norm: np.ndarray, gamma: np.ndarray, support: np.ndarray, step: int, s: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Algorithm 1 lines 6 to 9, with the vote on what enters."""
    finite = np.isfinite(norm)
    total = float(np.sqrt(np.square(norm[finite]).sum()))
    scale = min(s.lambda_abs / total, 1.0) if total > 0 else 1.0
    h = np.where(finite, scale, 0.0)
    entering = norm if s.init == "warmup_ema" else h * norm
    is_seen = finite & (entering > 0)
    if s.strict and s.init == "warmup_min":
        return h, np.where(is_seen, np.fmin(gamma, entering), gamma), support
    both = is_seen & np.isfinite(gamma)
    change = np.log(entering[both] / gamma[both]).mean() if both.any() else 0.0
    is_new = np.isinf(gamma)
    own_fall = np.where(is_new, 0.0, _OWN_FALL * gamma)
    is_low = (change < _FALL) | (entering < own_fall)
    is_high = (change > _RISE) | (entering > _OWN_RISE * gamma)
    if s.init == "warmup_ema":
        beta = 1.0 - min(10.0 / s.t_start, 1.0)
        entered = _average(np.fmin(entering, 2.0 * gamma), gamma, beta)
    else:
        is_high &= support < _FULL_SUPPORT
        entered = np.fmin(gamma, entering)
    disagrees, left = is_low | is_high, support - 1.0
    is_replaced = np.where(is_low, (left < 0) & ~is_new, left <= 0)
    new = np.where(disagrees, np.where(is_replaced, entering, gamma), entered)
    less = np.where(is_replaced, 1.0, np.maximum(left, 0.0))
    votes = np.where(disagrees, less, np.minimum(support + 1.0, _FULL_SUPPORT))
    new = np.where(is_seen, new, gamma)
    return h, new, np.where(is_seen, votes, support)


def _adapt(
    norm: np.ndarray, gamma: np.ndarray, step: int, s: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 1 lines 13 to 15."""
    finite, is_seen = np.isfinite(norm), np.isfinite(norm) & (norm > 0)
    h = np.where(is_seen, np.fmin(s.lambda_rel * gamma / norm, 1.0), 1.0)
    h = np.where(finite, h, 0.0)
    bound = s.lambda_rel
    if s.init == "warmup_ema":
        bound = max(bound, 1.0 + s.t_start / step if step else 1.0)
    average = _average(np.fmin(norm, bound * gamma), gamma, s.beta)
    return h, np.where(is_seen, average, gamma)


def _average(norm: np.ndarray, gamma: np.ndarray, beta: float) -> np.ndarray:
    average = beta * gamma + (1.0 - beta) * norm
    return np.where(np.isfinite(gamma), average, norm)
