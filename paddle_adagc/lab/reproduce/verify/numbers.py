# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numbers behind the pages: p-values, limits, and how they are printed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

from paddle_adagc.lab.reproduce.verify.runs import StoredRun

Pair = tuple[StoredRun, StoredRun]
Tests = dict[str, float]
"""``p_for``, ``p_against``, ``p_equal`` and ``p_fewer``, as far as tested."""


def tests_of(
    comparison: dict[str, Any],
    first: list[StoredRun],
    second: list[StoredRun],
    beside: list[StoredRun],
) -> Tests:
    """The p-values of a comparison; ``beside`` are unpaired runs."""
    expect, measure = comparison["expect"], comparison["measure"]
    margin: Any = comparison.get("margin")
    if not comparison.get("num_seeds", 1):
        return {}
    if expect == "at most":
        return bound_tests(comparison, first)
    if measure == "spike_events":
        return event_tests(comparison, first, second, beside)
    d = differences(
        [*zip(first, second, strict=True)], measure, comparison.get("times", 1)
    )
    if expect == "no worse":
        return below_zero(d - margin)
    if expect == "equal":
        beyond = min(
            sign_flip(d - margin, "greater"), sign_flip(d + margin, "less")
        )
        return {"p_for": within(d, margin), "p_against": min(1.0, 2 * beyond)}
    found = below_zero(d if expect == "lower" else -d)
    if margin is not None:
        found["p_equal"] = within(d, margin)
    return found


def below_zero(d: np.ndarray) -> Tests:
    """Two one-sided tests of a mean: below 0, and above."""
    return {
        "p_for": sign_flip(d, "less"),
        "p_against": sign_flip(d, "greater"),
    }


def within(d: np.ndarray, margin: float) -> float:
    """Two one-sided tests of a mean inside of the margin."""
    return max(sign_flip(d - margin, "less"), sign_flip(d + margin, "greater"))


def bound_tests(comparison: dict[str, Any], runs: list[StoredRun]) -> Tests:
    """Of runs, which all have to keep it; of one number; of repetitions."""
    bound, margin = comparison["bound"], comparison.get("margin")
    if runs:
        worst = max(c["measures"][comparison["measure"]] for c in runs)
        return {
            "p_for": float(worst > bound),
            "p_against": float(worst <= bound),
        }
    d = np.array(comparison["values"]) - bound
    if len(d) > 1:
        t = d.mean() / (d.std(ddof=1) / math.sqrt(len(d)))
        below = float(stats.t.cdf(t, len(d) - 1))
        return {"p_for": below, "p_against": 1 - below}
    close = margin is not None and abs(d[0]) <= margin
    return {
        "p_for": float(d[0] > 0 or close),
        "p_against": float(d[0] <= 0 or close),
        "p_equal": float(not close),
    }


def event_tests(
    comparison: dict[str, Any],
    first: list[StoredRun],
    second: list[StoredRun],
    beside: list[StoredRun],
) -> Tests:
    """Of spike events: the larger of the pooled and the clustered p."""
    k1, t1 = counts(first)
    margin = comparison.get("margin")
    if not second:
        p = 1.0
        if margin is not None and not k1.sum():
            p = fewer_events(k1, t1, margin)
        return {"p_for": float(not k1.sum()), "p_against": p}
    k2, t2 = counts(second)
    share = t1.sum() / (t1.sum() + t2.sum())
    total = int(k1.sum() + k2.sum())
    pooled = {
        "less": float(stats.binom.cdf(k1.sum(), total, share)),
        "greater": float(stats.binom.sf(k1.sum() - 1, total, share)),
    }
    less, greater = (
        max(p, sign_flip(k1 / t1 - k2 / t2, side)) for side, p in pooled.items()
    )
    is_higher = comparison["expect"] == "higher"
    p_for, p_against = (greater, less) if is_higher else (less, greater)
    found = {"p_for": p_for, "p_against": p_against}
    if comparison["expect"] == "zero" and k1.sum() + counts(beside)[0].sum():
        found |= {"p_for": 1.0, "p_fewer": less}
    if margin is not None:
        found["p_equal"] = max(
            fewer_events(k, t, margin) for k, t in ((k1, t1), (k2, t2))
        )
    return found


def fewer_events(
    events: np.ndarray, judged: np.ndarray, margin: float
) -> float:
    """Test a rate below ``margin`` events per 1,000 judged steps."""
    mean = margin * judged.sum() / 1000
    return float(stats.poisson.cdf(events.sum(), mean))


def counts(runs: list[StoredRun]) -> tuple[np.ndarray, np.ndarray]:
    """Events and judged steps of runs."""
    return (
        np.array([c["measures"]["events_1000"] for c in runs]),
        np.array([c["measures"]["judged_1000"] for c in runs]),
    )


def differences(
    pairs: list[Pair], measure: str, times: float = 1.0
) -> np.ndarray:
    """First minus ``times`` second; NaN is infinite, infinite ones equal."""
    found = []
    for pair in pairs:
        a, b = (c["measures"][measure] for c in pair)
        a, b = (math.inf if math.isnan(v) else v for v in (a, b))
        found.append(0.0 if a == times * b else a - times * b)
    return np.array(found)


def sign_flip(d: np.ndarray, side: str) -> float:
    """Share of the sign patterns with a sum at least as extreme."""
    if np.isinf(d).any():
        size = np.zeros(len(d))
        size[d != 0] = stats.rankdata(np.abs(d[d != 0]))
        d = np.sign(d) * size
    size = np.abs(d)
    sums = np.zeros(1)
    for value in size:
        sums = np.concatenate([sums + value, sums - value])
    seen, slack = d.sum(), 1e-12 * max(size.sum(), 1e-300)
    shares = {
        "less": float(np.mean(sums <= seen + slack)),
        "greater": float(np.mean(sums >= seen - slack)),
    }
    if side == "two-sided":
        return min(1.0, 2 * min(shares.values()))
    return shares[side]


def limits(measure: str, pairs: list[Pair]) -> tuple[float, float, float]:
    """A ratio or a mean difference with its 95% limits."""
    first, second = ([*side] for side in zip(*pairs, strict=True))
    if measure == "spike_events":
        (k1, t1), (k2, t2) = counts(first), counts(second)
        k, n, scale = k1.sum(), k1.sum() + k2.sum(), t2.sum() / t1.sum()
        shares = (
            k / n,
            stats.beta.ppf(0.025, k, n - k + 1) if k else 0.0,
            stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1.0,
        )
        low, middle, high = (
            float(scale * s / (1 - s)) if s < 1 else math.inf
            for s in (shares[1], shares[0], shares[2])
        )
        return middle, low, high
    if measure != "spike_mass":
        return mean_limits(differences(pairs, measure))
    logs = [
        [math.log(max(c["measures"][measure], 0.01)) for c in side]
        for side in (first, second)
    ]
    middle, low, high = mean_limits(np.array(logs[0]) - np.array(logs[1]))
    return math.exp(middle), math.exp(low), math.exp(high)


def mean_limits(d: np.ndarray) -> tuple[float, float, float]:
    """Mean and Student's limits."""
    mean = float(d.mean())
    error = float(d.std(ddof=1)) / math.sqrt(len(d))
    half = float(stats.t.isf(0.025, len(d) - 1)) * error
    return mean, mean - half, mean + half


def row_text(measure: str, value: float, low: float, high: float) -> str:
    """The three numbers as a figure prints them."""
    if measure in ("spike_events", "spike_mass"):
        return f"{value:.2g} ({low:.2g}-{high:.2g})".replace("inf", "∞")
    spec = "+.1f" if "area" in measure else "+.3f"
    return f"{value:{spec}} ({low:{spec}}, {high:{spec}})"


def change_text(measure: str, pairs: list[Pair]) -> str:
    """The reference's events or mean, then the method's."""
    first, second = ([*side] for side in zip(*pairs, strict=True))
    if measure == "spike_events":
        return f"{counts(second)[0].sum():.0f} → {counts(first)[0].sum():.0f}"
    spec = ".4f" if "loss" in measure else ".3g"
    old, new = (
        math.fsum(c["measures"][measure] for c in side) / len(side)
        for side in (second, first)
    )
    return f"{old:{spec}} → {new:{spec}}"
