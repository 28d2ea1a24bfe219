# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numbers behind the pages: p-values, limits, and how they are printed."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from adagc_lab.reproduce.verify.runs import EVENTS, Pair, StoredRun


def counts(runs: list[StoredRun]) -> tuple[np.ndarray, np.ndarray]:
    """Events and judged steps of runs."""
    events, judged = (
        np.array([run.measures[name] for run in runs])
        for name in ("events_1000", "judged_1000")
    )
    return events, judged


def differences(
    pairs: list[Pair], measure: str, times: float = 1.0
) -> np.ndarray:
    """First minus ``times`` second; NaN is infinite, infinite ones equal."""
    found = []
    for pair in pairs:
        a, b = (run.measures[measure] for run in pair)
        a, b = (math.inf if math.isnan(v) else v for v in (a, times * b))
        found.append(0.0 if a == b else a - b)
    return np.array(found)


def sign_flip(d: np.ndarray) -> tuple[float, float]:
    """Share of the sign patterns with a sum as low, and as high."""
    if np.isinf(d).any():
        size = np.zeros(len(d))
        size[d != 0] = stats.rankdata(np.abs(d[d != 0]))
        d = np.sign(d) * size
    # Every sum is one of each half's: 2**17 and 2**17 sums for 34 pairs.
    halves = []
    for half in (np.abs(d)[::2], np.abs(d)[1::2]):
        sums = np.zeros(1)
        for value in half:
            sums = np.concatenate([sums + value, sums - value])
        halves.append(sums)
    one, other = halves[0], np.sort(halves[1])
    seen, slack = d.sum(), 1e-12 * max(np.abs(d).sum(), 1e-300)
    low = np.searchsorted(other, seen + slack - one, "right").sum()
    lower = np.searchsorted(other, seen - slack - one, "left").sum()
    return low / 2.0 ** len(d), 1 - lower / 2.0 ** len(d)


def limits(measure: str, pairs: list[Pair]) -> tuple[float, float, float]:
    """A ratio or a mean difference with its 95% limits."""
    if measure == EVENTS:
        (k1, t1), (k2, t2) = (
            counts([*side]) for side in zip(*pairs, strict=True)
        )
        k, n, scale = k1.sum(), k1.sum() + k2.sum(), t2.sum() / t1.sum()
        shares = (
            k / n,
            stats.beta.ppf(0.025, k, n - k + 1) if k else 0.0,
            stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1.0,
        )
        value, low, high = (
            float(scale * s / (1 - s)) if s < 1 else math.inf for s in shares
        )
        return value, low, high
    if measure == "spike_mass":
        masses = [[run.measures[measure] for run in pair] for pair in pairs]
        first, second = np.log(np.maximum(masses, 0.01)).T
        value, low, high = map(math.exp, mean_limits(first - second))
        return value, low, high
    return mean_limits(differences(pairs, measure))


def mean_limits(d: np.ndarray) -> tuple[float, float, float]:
    """Mean and Student's limits."""
    half = stats.t.isf(0.025, len(d) - 1) * d.std(ddof=1) / math.sqrt(len(d))
    return float(d.mean()), float(d.mean() - half), float(d.mean() + half)


def row_text(measure: str, value: float, low: float, high: float) -> str:
    """The three numbers as a figure prints them."""
    if measure in (EVENTS, "spike_mass"):
        return f"{value:.2g} ({low:.2g}-{high:.2g})".replace("inf", "∞")
    spec = "+.1f" if "area" in measure else "+.3f"
    return f"{value:{spec}} ({low:{spec}}, {high:{spec}})"


def change_text(measure: str, pairs: list[Pair]) -> str:
    """The reference's events or mean, then the method's."""
    name, total, spec = measure, len(pairs), ".3g"
    if measure == EVENTS:
        name, total, spec = "events_1000", 1, ".0f"
    elif "loss" in measure:
        spec = ".4f"
    new, old = (
        math.fsum(run.measures[name] for run in side) / total
        for side in zip(*pairs, strict=True)
    )
    return f"{old:{spec}} → {new:{spec}}"


def rendered(values: list[float | None], kind: str, spec: str) -> str:
    """Values of seeds as a cell of a table."""
    known = [v for v in values if v is not None]
    n, share = len(known), f" ({len(known)} of {len(values)})"
    share *= n < len(values)
    if np.isfinite(known).all():
        if kind == "spread" and n > 1:
            mean = math.fsum(known) / n  # ties round alike
            return f"{mean:{spec}} ± {np.std(known, ddof=1):{spec}}{share}"
        if kind == "range" and n > 5:
            low, middle, high = np.quantile(known, [0, 0.5, 1])
            return f"{middle:{spec}} ({low:{spec}}-{high:{spec}}){share}"
        if kind == "range" and n:
            return " / ".join(f"{v:{spec}}" for v in known) + share
    special = {None: "–", math.inf: "∞", -math.inf: "−∞"}
    texts = [
        special.get(v) or f"{v:{spec}}".replace("nan", "NaN") for v in values
    ]
    return "–" if set(texts) == {"–"} else " / ".join(texts)


def rate_text(runs: list[StoredRun]) -> str:
    """Events per 1,000 judged steps with their exact 95% limits."""
    runs = [run for run in runs if "events_1000" in run.measures]
    if not runs:
        return "–"
    events, judged = (side.sum() for side in counts(runs))
    low = stats.gamma.ppf(0.025, events) if events else 0.0
    high = stats.gamma.ppf(0.975, events + 1)
    value, low, high = (1000 * n / judged for n in (events, low, high))
    return f"{value:.2f} ({low:.2f}-{high:.2f})"
