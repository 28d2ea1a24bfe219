# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which runs of two methods pair, and the numbers of pairs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from adagc_lab.committed import rounded
from adagc_lab.reproduce.results import (
    EVENTS,
    JUDGED,
    SPIKE_EVENTS,
    RunResult,
    sorted_runs,
)
from adagc_lab.reproduce.statistics import (
    MIN_SEEDS,
    Rate,
    pooled_rate,
    sign_flip_p,
)

Runs = Sequence[RunResult]
MASS, PRICE = "spike_mass", "end_loss"
LEAST_MASS = 0.01
"""Smaller masses count as this, so that a ratio of zero has a logarithm."""

Pair = tuple[RunResult, RunResult]


def seeds_of(pairs: Sequence[Pair]) -> list[int]:
    """Seeds of pairs: a seed may have run on several processors."""
    return sorted({run.seed for run, _ in pairs})


def paired(
    runs: Sequence[RunResult], others: Sequence[RunResult], measure: str
) -> list[Pair]:
    """Every pair of runs of two methods that have the measure, by seed.

    The two have seed, length and model of processor in common; of several
    lengths on one processor the longest counts, as others are prefixes.
    """
    name = EVENTS if measure == SPIKE_EVENTS else measure
    sides = [
        [run for run in side if name in run.measures] for side in (runs, others)
    ]
    found: dict[tuple[int, str], Pair] = {}
    for run, other in itertools.product(sorted_runs(sides[0]), sides[1]):
        pair = (run, other)
        if len({(r.seed, r.num_steps, r.cpu_model) for r in pair}) == 1:
            found.setdefault((run.seed, run.cpu_model), pair)
    return [found[key] for key in sorted(found)]


def longest_of_seeds(pairs: Sequence[Pair]) -> list[Pair]:
    """Each seed's pairs of its longest length, as values change with it."""
    longest = {run.seed: 0 for run, _ in pairs}
    for run, _ in pairs:
        longest[run.seed] = max(longest[run.seed], run.num_steps)
    return [
        pair for pair in pairs if pair[0].num_steps == longest[pair[0].seed]
    ]


def by_length(pairs: Sequence[Pair]) -> dict[int, list[Pair]]:
    """Pairs by number of steps: the sign of a price may change with it."""
    found: dict[int, list[Pair]] = {}
    for pair in sorted(pairs, key=lambda pair: pair[0].num_steps):
        found.setdefault(pair[0].num_steps, []).append(pair)
    return found


def paired_once(
    runs: Sequence[RunResult], others: Sequence[RunResult], measure: str
) -> list[Pair]:
    """One pair a seed: the longest, of several one whose processor is known.

    Runs without stored losses are left out where :data:`MIN_SEEDS` pairs stay.
    This rule came after the runs: no verdict uses it; those that would change
    with it say so.
    """
    own, other = ([r for r in side if r.series] for side in (runs, others))
    for some, beside in ((own, other), (runs, others)):
        pairs = paired(some, beside, measure)
        best = {
            run.seed: run for run in reversed(sorted_runs(p[0] for p in pairs))
        }
        once = [pair for pair in pairs if pair[0] is best[pair[0].seed]]
        if len(once) >= MIN_SEEDS:
            break
    return once


def differences_of(
    pairs: Sequence[Pair],
    measure: str,
    times: float = 1.0,
) -> np.ndarray:
    """The first's values minus ``times`` the second's, seed by seed.

    NaN (diverged) is infinite; the difference of equal infinite ones is 0.
    """
    values = np.array([[r.measures[measure] for r in pair] for pair in pairs])
    first, second = np.where(np.isnan(values), np.inf, values * (1, times)).T
    return _by_seed(pairs, first, second)


def _by_seed(
    pairs: Sequence[Pair], first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Mean difference of every seed, also over two types of processor."""
    with np.errstate(invalid="ignore"):
        all_of = np.where(first == second, 0.0, first - second)
        seeds = np.array([run.seed for run, _ in pairs])
        means = [all_of[seeds == seed].mean() for seed in seeds_of(pairs)]
        return np.where(np.isnan(means), 0.0, means)


def rates_of(runs: Runs) -> list[Rate]:
    """Events over judged steps of every seed."""
    found: dict[int, list[Rate]] = {}
    for run in runs:
        rate = Rate(int(run.measures[EVENTS]), int(run.measures[JUDGED]))
        found.setdefault(run.seed, []).append(rate)
    return [pooled_rate(found[seed]) for seed in sorted(found)]


def rate_of(runs: Runs) -> Rate:
    """Spike events over judged steps of all runs."""
    return pooled_rate(rates_of(runs))


def log_ratios(pairs: Sequence[Pair]) -> np.ndarray:
    """Logarithm of the first's spike mass over the second's, seed by seed."""
    masses = [[run.measures[MASS] for run in pair] for pair in pairs]
    return _by_seed(pairs, *np.log(np.maximum(masses, LEAST_MASS)).T)


def with_measure(pairs: Sequence[Pair], measure: str) -> list[Pair]:
    """Pairs of which both runs have a measure."""
    return [p for p in pairs if all(measure in r.measures for r in p)]


def beside(
    pairs: Sequence[Pair], measures: Sequence[str] = (MASS, PRICE)
) -> str:
    """``"; mass 14.1 → 0.12, p 0.0078; end +0.038 nat, p 0.0078"``.

    Prices of several lengths stand one by one, as they may differ in sign.
    """
    text = ""
    for measure in measures:
        known = with_measure(pairs, measure)
        if known and measure == MASS:
            text += f"; mass {change_of(known, MASS)}"
            text += _with_p(log_ratios(known), known, len(pairs))
        elif known:
            lengths = by_length(known)
            for length, own in lengths.items():
                changes = differences_of(own, measure)
                text += f"; end {rounded(changes.mean()):+.3g} nat"
                text += f" at {length:,} steps" if len(lengths) > 1 else ""
                text += _with_p(changes, own, len(pairs))
    return text


def _with_p(changes: np.ndarray, known: Sequence[Pair], num_pairs: int) -> str:
    """``" (3 pairs), p 0.25"``; the number of pairs if it is not all."""
    few = f" ({len(known)} pairs)" if len(known) < num_pairs else ""
    return f"{few}, p {sign_flip_p(changes).two_sided:.2g}"


def change_of(pairs: Sequence[Pair], measure: str, spec: str = ".3g") -> str:
    """``"14.1 → 0.123"``: the mean of the other, then of the method.

    Of events the sums.
    """
    sides = [*zip(*pairs, strict=True)]
    if measure == SPIKE_EVENTS:
        first, second = (rate_of(side).events for side in sides)
        return f"{second:,} → {first:,}"
    mean, other = (
        math.fsum(run.measures[measure] for run in side) / len(pairs)
        for side in sides
    )
    return f"{other:{spec}} → {mean:{spec}}"
