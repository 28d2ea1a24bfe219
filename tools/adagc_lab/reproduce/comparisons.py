# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a condition to its comparisons: one method against another, or a bound.

Spike events are compared as rates, all else by the paired values.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats

from adagc_lab.committed import rounded
from adagc_lab.report.formatting import format_list, two_digits
from adagc_lab.report.measures import run_measures
from adagc_lab.reproduce.claims import Condition
from adagc_lab.reproduce.pool import PooledResults
from adagc_lab.reproduce.results import (
    EVENTS,
    JUDGED,
    SPIKE_EVENTS,
    RunResult,
    longest,
    paired,
)
from adagc_lab.reproduce.statistics import (
    ALPHA,
    MIN_SEEDS,
    ONE_SIDED,
    PValues,
    Rate,
    clustered_rate_p,
    detectable,
    mean_limits,
    pairs_to_decide,
    pooled_rate,
    rate_ratio,
    rate_seeds_to_decide,
    sign_flip_p,
)

Runs = Sequence[RunResult]
_UNITS = {
    measure.name: f" {unit[1]}"
    for measure in run_measures()
    if (unit := re.search(r"\((.+)\)", measure.label))
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A method against another one or a bound, tested.

    ``p_for`` is of what is expected (None: not tested), ``p_against`` of the
    opposite, ``p_equal`` of a difference smaller than the margin, ``p_fewer``
    of fewer events, where an event breaks a ``zero``.
    """

    experiment: str
    measure: str
    expect: str
    method: str
    other: str | None = None
    margin: float | None = None
    times: float | None = None
    """The other's values are multiplied by it."""

    bound: float | None = None
    values: tuple[float, ...] = ()
    """Of what is no run."""

    keys: tuple[str, ...] = ()
    other_keys: tuple[str, ...] = ()
    """Runs of the method and of the other, pair by pair."""

    beside_keys: tuple[str, ...] = ()
    """Runs that the facts show though they do not pair."""

    num_seeds: int | None = None
    """Pairs; None for what is no run."""

    p_for: float | None = None
    p_against: float | None = None
    p_equal: float | None = None
    p_fewer: float | None = None
    is_no_fewer: bool = False
    """Whether a broken ``zero`` has at least the other's rate."""

    is_unexercised: bool = False
    """Whether neither side has any event, so that there is none to prevent."""

    seeds_to_decide: int | None = None
    detectable: float | None = None
    """Mean difference that so many pairs see with a power of 80%."""

    number: str = ""
    """The comparison in one number, for a line of a table."""

    facts: tuple[str, ...] = ()
    """What was seen, method by method; several comparisons may share one."""

    missing: tuple[str, ...] = ()
    """Methods without a run."""

    test: str = ""
    """The test in words."""

    @property
    def has_enough(self) -> bool:
        """Whether a verdict may rest on it."""
        return self.num_seeds is None or self.num_seeds >= MIN_SEEDS

    @property
    def is_small(self) -> bool:
        """Whether the difference is below the margin."""
        is_equal = self.p_equal is not None and self.p_equal <= ALPHA
        return self.has_enough and is_equal

    @property
    def holds(self) -> bool:
        """Whether what is expected is significant."""
        return self.has_enough and (self.p_for or 0.0) <= ONE_SIDED

    def as_json(self) -> dict[str, Any]:
        """Its fields that hold something, for an independent check."""
        texts = ("facts", "missing", "test", "number")
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name not in texts
            and value not in (None, ())
            and value is not False
        }


def comparisons_of(
    condition: Condition, source: PooledResults
) -> list[Comparison]:
    """Test a condition: each of its methods against each in ``to``."""
    target, experiment = condition.target or "", condition.experiment or ""
    place = condition.to_experiment or experiment
    is_rate = condition.measure == SPIKE_EVENTS
    test = _compare_events if is_rate else _compare_values
    found = []
    for method in condition.methods:
        plan = Comparison(
            experiment=experiment,
            measure=condition.measure,
            expect=condition.expect,
            method=method,
            margin=None if condition.times else condition.margin,
            times=condition.times,
            bound=condition.bound,
        )
        runs = source.runs(target, experiment, method)
        if condition.bound is not None:
            numbers = source.numbers(target, experiment, method, plan.measure)
            found.append(_compare_bound(plan, condition.bound, runs, numbers))
        elif condition.expect == "occurs":
            found.append(_occurrence(plan, runs))
        for other in condition.to:
            is_here = condition.to_experiment is None
            label = other if is_here else f"{other} ({place})"
            others = source.runs(target, place, other)
            versus = dataclasses.replace(plan, other=label)
            found.append(test(versus, runs, others))
    return found


def differences_of(
    pairs: Sequence[tuple[RunResult, RunResult]],
    measure: str,
    times: float = 1.0,
) -> np.ndarray:
    """The first's values minus ``times`` the second's, pair by pair.

    NaN (diverged) is infinite; the difference of equal infinite ones is 0.
    """
    values = np.array([[r.measures[measure] for r in pair] for pair in pairs])
    first, second = np.where(np.isnan(values), np.inf, values * (1, times)).T
    with np.errstate(invalid="ignore"):
        return np.where(first == second, 0.0, first - second)


def _rates(runs: Runs) -> list[Rate]:
    return [
        Rate(int(run.measures[EVENTS]), int(run.measures[JUDGED]))
        for run in runs
    ]


def rate_of(runs: Runs) -> Rate:
    """Spike events over judged steps of all runs."""
    return pooled_rate(_rates(runs))


def rate_text(method: str, runs: Runs) -> str:
    """``"AdaGC: 1 in 14,000 judged steps (0 / 1), 0.07 (0.00-0.40)..."``."""
    rate, counts = rate_of(runs), [r.events for r in _rates(runs)]
    return (
        f"{method}: {rate.events:,} in {rate.steps:,} judged steps "
        f"({format_list(counts)}), {rate.text} per 1,000"
    )


def _rate_texts(plan: Comparison, own: Runs, others: Runs) -> tuple[str, ...]:
    sides = ((plan.method, own), (plan.other, others))
    return tuple(rate_text(str(name), runs) for name, runs in sides if runs)


def _keys(runs: Runs) -> tuple[str, ...]:
    return tuple(run.run_id for run in runs)


def _compare_events(plan: Comparison, runs: Runs, others: Runs) -> Comparison:
    """Test the event rates of two methods, pair by pair."""
    pairs = paired(runs, others, SPIKE_EVENTS)
    if not pairs:
        return _unpaired(plan, longest(runs, EVENTS), longest(others, EVENTS))
    first, second = ([*side] for side in zip(*pairs, strict=True))
    p = clustered_rate_p(_rates(first), _rates(second))
    rates, margin = (rate_of(first), rate_of(second)), plan.margin
    is_higher, is_zero = plan.expect == "higher", plan.expect == "zero"
    p_for, p_against = (p.greater, p.less) if is_higher else p
    if all(run.series for run in (*first, *second)):
        runs = [run for run in runs if run.series]
    own = longest(runs, EVENTS) if is_zero else []
    unpaired = [run for run in own if run not in first]
    num_events = rates[0].events + rate_of(unpaired).events
    is_broken = is_zero and num_events > 0
    facts = [
        *_rate_texts(plan, first, second),
        *_damage({plan.method: first, str(plan.other): second}),
    ]
    if unpaired:
        facts.insert(1, rate_text(f"{plan.method}, unpaired", unpaired))
    side = "above" if is_higher else "below"
    return dataclasses.replace(
        plan,
        keys=_keys(first),
        other_keys=_keys(second),
        beside_keys=_keys(unpaired),
        num_seeds=len(pairs),
        p_for=1.0 if is_broken else p_for,
        p_against=p_against,
        p_equal=margin and max(rate.p_below(margin) for rate in rates),
        p_fewer=p.less if is_broken else None,
        is_no_fewer=is_broken and rates[0].value >= rates[1].value,
        is_unexercised=not (is_higher or num_events or rates[1].events),
        number=_rates_in_short(*rates, min(p)),
        seeds_to_decide=rate_seeds_to_decide(*rates, len(pairs), margin),
        facts=tuple(facts),
        test=f"{plan.method} {side} {plan.other}: {_p_text(p_for, p_against)}",
    )


def _rates_in_short(first: Rate, second: Rate, p: float) -> str:
    """``"10 → 1 events, ratio 0.10 (0.00-0.70), p 0.0078"``."""
    value, low, high = rate_ratio(first, second)
    text = f"{second.events:,} → {first.events:,} events"
    if math.isnan(value):
        return f"{text} in {first.steps:,} steps each"
    limits = f"{value:.2g} ({low:.2f}-{high:.2g})".replace("inf", "∞")
    return f"{text}, ratio {limits}, p {p:.2g}"


def _damage(sides: dict[str, list[RunResult]]) -> Iterator[str]:
    """How large the events of both sides are, and the mass of all spikes."""
    masses = []
    for name, runs in sides.items():
        hit = [run for run in runs if run.measures[EVENTS]]
        if hit and all("worst_jump" in run.measures for run in hit):
            steps = sum(int(run.measures["spikes_1000"]) for run in hit)
            rises = [run.measures["worst_jump"] for run in hit]
            yield (
                f"size, {name}: {steps:,} steps, largest rise of a run "
                f"{min(rises):.2f}-{max(rises):.2f} nat"
            )
        if all("spike_mass" in run.measures for run in runs):
            mass = statistics.fmean(run.measures["spike_mass"] for run in runs)
            masses.append(f"{name} {mass:.3g}")
    if len(masses) == 2:
        yield f"spike mass per run, {', '.join(masses)} nat × steps"


def _occurrence(plan: Comparison, runs: Runs) -> Comparison:
    """Whether a method has any event; the margin is the rate that it denies."""
    own = longest(runs, EVENTS)
    if not own:
        return _unpaired(plan, own, ())
    rate, margin = rate_of(own), plan.margin
    p_against, test = 1.0, f"{plan.method} has at least one"
    if not rate.events and margin is not None:
        p_against = rate.p_below(margin)
        test = f"{plan.method} below {margin:g} per 1,000: p {p_against:.3g}"
    return dataclasses.replace(
        plan,
        keys=_keys(own),
        num_seeds=len(own),
        p_for=0.0 if rate.events else 1.0,
        p_against=p_against,
        number=f"{plan.method}: {rate.events:,} events in {rate.steps:,} steps",
        facts=_rate_texts(plan, own, ()),
        test=test,
    )


def _unpaired(plan: Comparison, own: Runs, others: Runs) -> Comparison:
    """Say which side has no run; of events the rates of the other."""
    sides = ((plan.method, own), (plan.other, others))
    missing = tuple(name for name, runs in sides if name and not runs)
    found = dataclasses.replace(plan, num_seeds=0, missing=missing)
    if plan.measure != SPIKE_EVENTS:
        return found
    return dataclasses.replace(
        found,
        keys=_keys(own),
        beside_keys=_keys(others),
        facts=_rate_texts(plan, own, others),
    )


def _compare_values(plan: Comparison, runs: Runs, others: Runs) -> Comparison:
    """Test the values of two methods, pair by pair."""
    measure, expect, margin = plan.measure, plan.expect, plan.margin
    pairs = paired(runs, others, measure)
    if not pairs:
        return _unpaired(plan, runs, others)
    first, second = zip(*pairs, strict=True)
    times = 1.0 if plan.times is None else plan.times
    differences = differences_of(pairs, measure, times)
    p_for, p_against, p_equal = _value_tests(differences, expect, margin)
    sees = detectable(differences)
    # "No worse" is decided on one side of the margin or on the other.
    open_part = (differences, margin)
    if expect == "no worse":
        open_part = (differences - (margin or 0.0), None)
    factor = "" if plan.times is None else f"{times:g} times "
    return dataclasses.replace(
        plan,
        number=_mean_in_short(measure, differences, min(p_for, p_against)),
        keys=_keys(first),
        other_keys=_keys(second),
        num_seeds=len(pairs),
        p_for=p_for,
        p_against=p_against,
        p_equal=p_equal,
        seeds_to_decide=pairs_to_decide(*open_part),
        detectable=sees if math.isfinite(sees) else None,
        test=f"{plan.method} minus {factor}{plan.other} "
        f"{_mean_text(differences)}, {expect}: {_p_text(p_for, p_against)}",
    )


def _value_tests(
    differences: np.ndarray, expect: str, margin: float | None
) -> tuple[float, float, float | None]:
    """Test for, against, and of a difference below the margin."""
    p = sign_flip_p(differences)
    sides = (p.greater, p.less) if expect == "higher" else p
    if margin is None:
        if expect in ("no worse", "equal"):
            raise ValueError(f"expect={expect!r} needs a margin")
        return *sides, None
    below = sign_flip_p(differences - margin)
    above = sign_flip_p(differences + margin)
    within = max(below.less, above.greater)
    if expect == "no worse":
        return *below, None
    if expect == "equal":
        return within, PValues(above.less, below.greater).two_sided, None
    return *sides, within


def _compare_bound(
    plan: Comparison, bound: float, runs: Runs, numbers: Sequence[float]
) -> Comparison:
    """A bound of every run, of one number, or of repetitions (Student's t)."""
    own = longest(runs, plan.measure)
    if not (numbers or own):
        return _unpaired(plan, own, own)
    values = numbers or [run.measures[plan.measure] for run in own]
    mean, excess = statistics.fmean(values), max(values) - bound
    is_one = len(numbers) == 1
    is_close = is_one and plan.margin is not None and abs(excess) <= plan.margin
    p_for = float(excess > 0 or is_close)
    p_against = float(excess <= 0 or is_close)
    number, seen, end = f"{mean:.3g}", f"{mean:.4g}", f"(bound {bound:g})"
    p_text = ""
    if not numbers:
        number, seen = f"largest {max(values):.3g}", format_list(values, ".3g")
    elif not is_one:
        test = stats.ttest_1samp(numbers, bound, alternative="less")
        p_for, p_against = float(test.pvalue), 1 - float(test.pvalue)
        number, seen = seen, f"{seen} on average of {len(numbers)} repetitions"
        p_text = f", p {p_for:.3g}"
    return dataclasses.replace(
        plan,
        values=tuple(numbers),
        keys=() if numbers else _keys(own),
        num_seeds=None if numbers else len(own),
        p_for=p_for,
        p_against=p_against,
        p_equal=float(not is_close) if is_one else None,
        number=f"{number} {end}",
        test=f"{plan.method} {seen} {end}{p_text}",
    )


def _p_text(p_for: float, p_against: float) -> str:
    """``"p 0.0312"``, with the opposite's p where that is the smaller one."""
    text = f"p {p_for:.3g}"
    if p_against < p_for:
        text += f", the opposite p {p_against:.3g}"
    return text


def _mean_in_short(measure: str, differences: np.ndarray, p: float) -> str:
    """``"-0.0073 nat (-0.011 to -0.004), p 0.0078"``: mean, 95% limits."""
    mean, low, high = mean_limits(differences)
    text = f"{mean:+.3g}{_UNITS.get(measure, '')}"
    if len(differences) > 1 and np.isfinite(differences).all():
        text += f" ({low:+.3g} to {high:+.3g})"
    return f"{text}, p {p:.2g}"


def _mean_text(differences: np.ndarray) -> str:
    """``"-0.0073 ± 0.0039"``: mean and sample standard deviation."""
    mean = rounded(statistics.fmean(differences))
    if len(differences) < 2 or not np.isfinite(differences).all():
        return f"{mean:+.4g}"
    return f"{mean:+.4g} ± {two_digits(rounded(statistics.stdev(differences)))}"
