# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Means of paired differences with their limits, and numbers as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

LEAST = 4
"""Limits of fewer pairs are not shown."""

_RESAMPLES = 20_000


class Difference(NamedTuple):
    """The mean of paired differences with its 95% limits."""

    mean: float
    low: float
    high: float
    number: int


def difference(values: Sequence[float]) -> Difference | None:
    """Return the mean with bootstrap limits; None of fewer than two values.

    The limits are percentiles of 20,000 resampled means, wider by Student's
    factor ("expanded percentiles", Hesterberg 2015): plain percentiles of eight
    values are too narrow. They are never wider than the values. NaN is left
    out; with an infinite value the limits are the smallest and the largest.
    """
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    number = len(known)
    if number < 2:
        return None
    if np.isinf(known).any():
        with np.errstate(invalid="ignore"):
            mean = float(known.mean())
        return Difference(mean, float(known.min()), float(known.max()), number)
    student = stats.t.ppf(0.025, number - 1) * np.sqrt(number / (number - 1))
    tail = 100 * float(stats.norm.cdf(student))
    drawn = np.random.RandomState(0).randint(0, number, (_RESAMPLES, number))
    means = known[drawn].mean(axis=1)
    low, high = np.percentile(means, [tail, 100 - tail])
    return Difference(float(known.mean()), float(low), float(high), number)


def shown(found: Difference | None, digits: int = 3) -> str:
    """Return ``"+0.061 (+0.057, +0.065)"``, or a dash.

    A number that rounds to zero keeps its sign: limits of +0.000 and +0.002
    leave out zero.
    """
    if found is None:
        return "–"
    mean, low, high = (fixed(x, digits, "+") for x in found[:3])
    return f"{mean} ({low}, {high})" if found.number >= LEAST else mean


def fixed(value: Any, digits: int, sign: str = "") -> str:
    """Format a number alike on every processor: last bits never decide."""
    return f"{round(float(value), 9):{sign}.{digits}f}"
