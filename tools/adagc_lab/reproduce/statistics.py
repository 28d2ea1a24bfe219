# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exact tests of paired differences and of event rates, all by SciPy."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from adagc_lab.committed import rounded

ALPHA = 0.05
ONE_SIDED = ALPHA / 2
"""A claim and its opposite share :data:`ALPHA`."""

_POWER = 0.8
_Z_SUM, _Z_SUM_WITHIN = (
    float(stats.norm.ppf(1 - p) + stats.norm.ppf(_POWER))
    for p in (ONE_SIDED, ALPHA)
)
MIN_SEEDS = 8
"""Pairs that a verdict takes: with 8 the sign-flip test at 0.025 sees one
standard deviation with a power of 0.65; with 5 its smallest p is 0.031."""

MAX_PAIRS = 48
"""Each half of them has 2**24 patterns of signs: some seconds."""

MAX_SEEDS = 200
"""Where the search for a number of seeds that would decide ends."""

PER_STEPS = 1000
"""Event rates are per so many judged steps."""


class PValues(NamedTuple):
    """One-sided p-values of the same test."""

    less: float
    greater: float

    @property
    def two_sided(self) -> float:
        """Twice the smaller one."""
        return min(1.0, 2 * min(self))


def sign_flip_p(differences: Sequence[float] | np.ndarray) -> PValues:
    """Exact permutation test of paired differences (Fisher 1935).

    If the two methods did not differ, every difference could as well have the
    other sign: p is the share of all ``2**num_pairs`` patterns of signs whose
    mean is at least as extreme as the one seen. With infinite differences their
    signed ranks take the place of all differences (Wilcoxon's test, exact with
    ties). At most :data:`MAX_PAIRS` pairs.
    """
    series = np.asarray(differences, dtype=np.float64)
    if not 1 <= series.size <= MAX_PAIRS or series.ndim != 1:
        raise ValueError(
            f"differences must be 1 to {MAX_PAIRS} numbers, got shape "
            f"{series.shape}"
        )
    if np.isnan(series).any():
        raise ValueError(f"differences holds a NaN: {series.tolist()}")
    if np.isinf(series).any():
        # Zeros have no sign; ties share their mean rank, from 1.
        num_zeros = np.count_nonzero(series == 0)
        ranks = stats.rankdata(np.abs(series)) - num_zeros
        series = np.sign(series) * ranks
    return PValues(_share_above(*-series), _share_above(*series))


@functools.cache
def _share_above(*differences: float) -> float:
    """Share of the sign patterns whose sum is at least that of all."""
    series = np.array(differences)
    left, right = (
        functools.reduce(
            lambda sums, x: np.concatenate([sums + x, sums - x]),
            half,
            np.zeros(1),
        )
        for half in np.array_split(series, 2)
    )
    # Sums that differ by their rounding alone are equal.
    rounding = 0.5e-9 * series.size * np.abs(series).max()
    least = series.sum() - rounding - left
    count = right.size - np.searchsorted(np.sort(right), least)
    return float(count.sum()) / 2**series.size


class Rate(NamedTuple):
    """Events over judged steps."""

    events: int
    steps: int

    @property
    def value(self) -> float:
        """Events per :data:`PER_STEPS` judged steps."""
        return PER_STEPS * self.events / self.steps

    @property
    def text(self) -> str:
        """Its value with exact 95% limits (Garwood 1936)."""
        low = stats.chi2.ppf(0.025, 2 * self.events) if self.events else 0.0
        high = stats.chi2.ppf(0.975, 2 * self.events + 2)
        low, high = (x / 2 * PER_STEPS / self.steps for x in (low, high))
        return f"{self.value:.2f} ({low:.2f}-{high:.2f})"

    def p_below(self, rate: float) -> float:
        """Exact p against a rate of at least ``rate`` per 1,000 steps."""
        return float(stats.poisson.cdf(self.events, rate * self.steps / 1000))


def rate_p(first: Rate, second: Rate, factor: float = 1.0) -> PValues:
    """Exact conditional binomial test (Przyborowski 1940) of two rates.

    Of the first one against ``factor`` times the second.
    """
    total = first.events + second.events
    share = factor * first.steps / (factor * first.steps + second.steps)
    less = stats.binom.cdf(first.events, total, share)
    greater = stats.binom.sf(first.events - 1, total, share)
    return PValues(float(less), float(greater))


def rate_within_p(first: Rate, second: Rate, factor: float) -> float:
    """Exact p against rates that differ ``factor`` times or more.

    The band grows with the control's rate: of rare events a fixed one would
    let a tripling pass.
    """
    below = rate_p(first, second, factor).less
    return max(below, rate_p(first, second, 1 / factor).greater)


def rate_ratio(first: Rate, second: Rate) -> tuple[float, float, float]:
    """``first / second`` with exact 95% limits; NaN, 0, inf without events."""
    total = first.events + second.events
    if not total:
        return math.nan, 0.0, math.inf
    limits = stats.binomtest(first.events, total).proportion_ci()
    steps = second.steps / first.steps
    shares = (first.events / total, limits.low, limits.high)
    value, low, high = (
        steps * share / (1 - share) if share < 1 else math.inf
        for share in map(float, shares)
    )
    return value, low, high


def clustered_rate_p(
    first: Sequence[Rate], second: Sequence[Rate], factor: float = 1.0
) -> PValues:
    """Return the larger p of the conditional and the seeds' sign-flip test.

    Of rates against ``factor`` times the second.
    """
    pooled = rate_p(pooled_rate(first), pooled_rate(second), factor)
    differences = [
        a.events / a.steps - factor * b.events / b.steps
        for a, b in zip(first, second, strict=True)
    ]
    return PValues(*map(max, pooled, sign_flip_p(differences)))


def pooled_rate(rates: Sequence[Rate]) -> Rate:
    """All events over all judged steps."""
    return Rate(sum(r.events for r in rates), sum(r.steps for r in rates))


def mean_limits(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean and its 95% limits by Student's t; of one value three times it."""
    mean, half = differences.mean(), 0.0
    if len(differences) > 1:
        with np.errstate(invalid="ignore"):  # of a run that diverged
            error = stats.sem(differences)
        half = stats.t.ppf(0.975, len(differences) - 1) * error
    return rounded(mean), rounded(mean - half), rounded(mean + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order of ``p_values``."""
    p = np.array(p_values)
    order = np.argsort(p)
    factors = np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, factors * p[order]))
    return adjusted.tolist()


def detectable(differences: np.ndarray) -> float | None:
    """Mean difference that so many pairs see with a power of 80%."""
    if len(differences) < 2 or not np.isfinite(differences).all():
        return None
    return _Z_SUM * float(stats.sem(differences))


def pairs_to_decide(
    differences: np.ndarray, margin: float | None
) -> int | None:
    """Pairs that would decide with a power of 80%, if the effect stays.

    By the normal approximation, at least :data:`MIN_SEEDS`: for a difference,
    or, with a margin, for its being smaller than the margin, whichever takes
    fewer. None: more than :data:`MAX_SEEDS`.
    """
    if len(differences) < 2 or not np.isfinite(differences).all():
        return None
    mean = abs(float(differences.mean()))
    spread = float(differences.std(ddof=1))
    tests = [(_Z_SUM, mean)]
    tests += [] if margin is None else [(_Z_SUM_WITHIN, margin - mean)]
    counts = [
        max(MIN_SEEDS, math.ceil((z * spread / distance) ** 2))
        for z, distance in tests
        if distance > 0
    ]
    return min((n for n in counts if n <= MAX_SEEDS), default=None)


def rate_seeds_to_decide(
    first: Rate,
    second: Rate,
    num_seeds: int,
    margin: float | None,
    *,
    is_one_sided: bool = False,
) -> int | None:
    """Seeds that would decide if events grow with the steps, or None.

    ``is_one_sided``: on one side of ``margin`` times the other or on the other.
    """
    for count in range(max(MIN_SEEDS, num_seeds), MAX_SEEDS + 1):
        factor = count / num_seeds
        one, other = (
            Rate(round(rate.events * factor), round(rate.steps * factor))
            for rate in (first, second)
        )
        within = 1.0
        p = rate_p(one, other, (margin or 1.0) if is_one_sided else 1.0)
        if margin is not None and not is_one_sided:
            within = rate_within_p(one, other, margin)
        if min(p) <= ONE_SIDED or within <= ALPHA:
            return count
    return None
