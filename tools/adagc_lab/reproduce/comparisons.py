# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a condition to its comparisons: one method against another, or a bound.

Spike events are compared as rates, all else by the paired values. Where
neither side has an event, spike mass decides: it also sees a loss that is
always disturbed. A gain stands beside its price, the loss at the end.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats

from adagc_lab.committed import rounded
from adagc_lab.report.formatting import format_list, two_digits
from adagc_lab.report.measures import run_measures
from adagc_lab.reproduce.claims import Condition
from adagc_lab.reproduce.pairs import (
    MASS,
    PRICE,
    Pair,
    Runs,
    beside,
    by_length,
    change_of,
    differences_of,
    log_ratios,
    longest_of_seeds,
    paired,
    rate_of,
    rates_of,
    seeds_of,
    with_measure,
)
from adagc_lab.reproduce.pool import PooledResults
from adagc_lab.reproduce.results import (
    END_STEPS,
    EVENTS,
    SPIKE_EVENTS,
    RunResult,
    longest,
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
    rate_ratio,
    rate_seeds_to_decide,
    rate_within_p,
    sign_flip_p,
)

Pairing = Callable[[Runs, Runs, str], "list[Pair]"]

MASS_FACTOR = 2.0
"""Where no side has an event, masses closer than this are no difference."""

GAINS = (
    *(MASS, "excess_area", "excess_area_global", "excess_worst"),
    "moment1_growth",
)
"""Measures of disturbance, whose numbers stand beside their price."""

_UNITS = {
    measure.name: f" {unit[1]}"
    for measure in run_measures()
    if (unit := re.search(r"\((.+)\)", measure.label))
} | {"excess_area_global": " nat × steps"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A method against another one or a bound, tested.

    Attributes:
        times: The other's values are multiplied by it.
        seeds: Those whose runs count; (): all.
        values: Of what is no run.
        keys, other_keys: Runs of the method and of the other, pair by pair.
        beside_keys: Runs that the facts show though they do not pair.
        num_seeds: Pairs; None for what is no run.
        p_for: Of what is expected; None: not tested.
        p_against: Of the opposite.
        p_equal: Of a difference smaller than the margin.
        p_fewer: Of fewer events, where an event breaks a ``zero``.
        is_no_fewer: Whether a broken ``zero`` has at least the other's rate,
            and the other so many events that zero would be fewer.
        is_blind: Whether neither side has any event, so that spike mass
            decides.
        p_alike: Of masses closer than :data:`MASS_FACTOR`, where it decides.
        detectable: Mean difference that so many pairs see with a power of 80%.
        number: The comparison in one number, for a line of a table.
        facts: What was seen, method by method; several comparisons may share
            one.
        missing: Methods without a run.
        test: The test in words.
    """

    experiment: str
    measure: str
    expect: str
    method: str
    other: str | None = None
    margin: float | None = None
    times: float | None = None
    bound: float | None = None
    seeds: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    keys: tuple[str, ...] = ()
    other_keys: tuple[str, ...] = ()
    beside_keys: tuple[str, ...] = ()
    num_seeds: int | None = None
    p_for: float | None = None
    p_against: float | None = None
    p_equal: float | None = None
    p_fewer: float | None = None
    is_no_fewer: bool = False
    is_blind: bool = False
    p_alike: float | None = None
    seeds_to_decide: int | None = None
    detectable: float | None = None
    number: str = ""
    facts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    test: str = ""

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
        is_shown = self.p_for is not None and self.p_for <= ONE_SIDED
        return self.has_enough and is_shown

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
    condition: Condition, source: PooledResults, pairing: Pairing = paired
) -> list[Comparison]:
    """Test a condition: each of its methods against each in ``to``."""
    target, experiment = condition.target or "", condition.experiment or ""
    place = condition.to_experiment or experiment
    seeds: tuple[int, ...] = ()
    if condition.own_seeds:
        seeds = source.seeds(target, experiment)
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
            seeds=seeds,
        )
        runs = source.runs(target, experiment, method, plan.seeds)
        if condition.bound is not None:
            numbers = source.numbers(target, experiment, method, plan.measure)
            found.append(_compare_bound(plan, condition.bound, runs, numbers))
        elif condition.expect == "occurs":
            found.append(_occurrence(plan, runs))
        for other in condition.to:
            is_here = condition.to_experiment is None
            label = other if is_here else f"{other} ({place})"
            others = source.runs(target, place, other, plan.seeds)
            versus = dataclasses.replace(plan, other=label)
            pairs = pairing(runs, others, plan.measure)
            if plan.measure != SPIKE_EVENTS:
                pairs = longest_of_seeds(pairs)
            if not pairs:
                found.append(_unpaired(versus, runs, others))
                continue
            first, second = zip(*pairs, strict=True)
            versus = dataclasses.replace(
                versus,
                keys=_keys(first),
                other_keys=_keys(second),
                num_seeds=len(seeds_of(pairs)),
            )
            if condition.measure == SPIKE_EVENTS:
                found.append(_compare_events(versus, pairs, runs))
            else:
                found.append(_compare_values(versus, pairs))
    return found


def rate_text(method: str, runs: Runs) -> str:
    """``"AdaGC: 1 in 14,000 judged steps (0 / 1), 0.07 (0.00-0.40)..."``."""
    rate, counts = rate_of(runs), [r.events for r in rates_of(runs)]
    return (
        f"{method}: {rate.events:,} in {rate.steps:,} judged steps "
        f"({format_list(counts)}), {rate.text} per 1,000"
    )


def _rate_texts(plan: Comparison, own: Runs, others: Runs) -> tuple[str, ...]:
    sides = ((plan.method, own), (plan.other, others))
    return tuple(rate_text(str(name), runs) for name, runs in sides if runs)


def _keys(runs: Runs) -> tuple[str, ...]:
    return tuple(run.run_id for run in runs)


def _mass_tests(pairs: Sequence[Pair]) -> tuple[float, float, float]:
    """P of masses :data:`MASS_FACTOR` times as low, as high, of neither."""
    if len(seeds_of(pairs)) < MIN_SEEDS:
        return 1.0, 1.0, 1.0
    logs, far = log_ratios(pairs), math.log(MASS_FACTOR)
    low, high = sign_flip_p(logs + far), sign_flip_p(logs - far)
    return low.less, high.greater, max(low.greater, high.less)


def _mass_below_p(pairs: Sequence[Pair]) -> PValues:
    """P of masses less than :data:`MASS_FACTOR` times the other's, of more."""
    if len(seeds_of(pairs)) < MIN_SEEDS:
        return PValues(1.0, 1.0)
    return sign_flip_p(log_ratios(pairs) - math.log(MASS_FACTOR))


def _compare_events(
    plan: Comparison, pairs: list[Pair], runs: Runs
) -> Comparison:
    """Test the event rates of two methods, pair by pair."""
    first, second = ([*side] for side in zip(*pairs, strict=True))
    rates, margin = (rate_of(first), rate_of(second)), plan.margin
    is_higher, is_zero = plan.expect == "higher", plan.expect == "zero"
    unpaired = [
        run for run in longest(runs, EVENTS) if is_zero and run not in first
    ]
    num_events = rates[0].events + rate_of(unpaired).events
    is_broken = is_zero and num_events > 0
    is_blind = not (num_events or rates[1].events)
    is_no_worse = plan.expect == "no worse"
    factor = (margin or 1.0) if is_no_worse else 1.0
    p = clustered_rate_p(rates_of(first), rates_of(second), factor)
    p_equal = margin and rate_within_p(*rates, margin)
    p_alike = None
    if is_blind:
        known = with_measure(pairs, MASS)
        less, greater, p_alike = _mass_tests(known)
        p, p_equal = PValues(less, greater), p_alike if is_higher else None
        if is_no_worse:
            p = _mass_below_p(known)
    p_equal = None if is_no_worse else p_equal
    p_for, p_against = (p.greater, p.less) if is_higher else p
    facts = [
        *_rate_texts(plan, first, second),
        *_sizes({plan.method: first, str(plan.other): second}),
        *_beside_facts(plan, pairs),
    ]
    if unpaired:
        facts.insert(1, rate_text(f"{plan.method}, unpaired", unpaired))
    side = "above" if is_higher else "below"
    if is_blind and not is_no_worse:
        side = f"{MASS_FACTOR:g} times {side}, by spike mass,"
    elif is_no_worse:
        by_mass = f"{MASS_FACTOR:g} times, by spike mass,"
        side = f"below {by_mass if is_blind else f'{factor:g} times'}"
    test = f"{plan.method} {side} {plan.other}: {_p_text(p_for, p_against)}"
    if p_alike is not None and is_zero:
        num = len(seeds_of(with_measure(pairs, MASS)))
        test += f", within {MASS_FACTOR:g} times p {p_alike:.3g} ({num} seeds)"
    return dataclasses.replace(
        plan,
        beside_keys=_keys(unpaired),
        p_for=1.0 if is_broken else p_for,
        p_against=p_against,
        p_equal=p_equal,
        p_fewer=p.less if is_broken else None,
        is_no_fewer=is_broken
        and rates[0].value >= rates[1].value
        and _none_would_be_fewer(first, second),
        is_blind=is_blind,
        p_alike=p_alike,
        number=_rates_in_short(pairs, min(p)) + beside(pairs),
        seeds_to_decide=rate_seeds_to_decide(
            *rates, len(seeds_of(pairs)), margin, is_one_sided=is_no_worse
        ),
        facts=tuple(facts),
        test=test,
    )


def _none_would_be_fewer(first: Runs, second: Runs) -> bool:
    """Whether zero events in the first would be significantly fewer."""
    none = [Rate(0, rate.steps) for rate in rates_of(first)]
    return clustered_rate_p(none, rates_of(second)).less <= ONE_SIDED


def _rates_in_short(pairs: Sequence[Pair], p: float) -> str:
    """``"10 → 1 events, ratio 0.10 (0.00-0.70), p 0.0078"``."""
    first, second = map(rate_of, zip(*pairs, strict=True))
    value, low, high = rate_ratio(first, second)
    text = f"{change_of(pairs, SPIKE_EVENTS)} events"
    if math.isnan(value):
        return f"{text} in {first.steps:,} steps each"
    limits = f"{value:.2g} ({low:.2f}-{high:.2g})".replace("inf", "∞")
    return f"{text}, ratio {limits}, p {p:.2g}"


def _sizes(sides: dict[str, list[RunResult]]) -> Iterator[str]:
    """How large the events of both sides are."""
    for name, runs in sides.items():
        hit = [run for run in runs if run.measures[EVENTS]]
        if hit and all("worst_jump" in run.measures for run in hit):
            steps = sum(int(run.measures["spikes_1000"]) for run in hit)
            rises = [run.measures["worst_jump"] for run in hit]
            yield (
                f"size, {name}: {steps:,} steps, largest rise of a run "
                f"{min(rises):.2f}-{max(rises):.2f} nat"
            )


def _beside_facts(plan: Comparison, pairs: Sequence[Pair]) -> Iterator[str]:
    """The spike mass, and the price of a gain: the loss at the end."""
    known = with_measure(pairs, MASS)
    if known and plan.measure != MASS:
        yield (
            f"spike mass per run in {len(known)} pairs, {plan.other} → "
            f"{plan.method}: {change_of(known, MASS)} nat × steps"
        )
    for length, known in by_length(with_measure(pairs, PRICE)).items():
        changes = differences_of(known, PRICE)
        yield (
            f"price at {length:,} steps, median loss of the last {END_STEPS}, "
            f"{plan.other} → {plan.method}: {change_of(known, PRICE, '.4g')} "
            f"nat, higher in {np.count_nonzero(changes > 0)} of {len(changes)} "
            "seeds"
        )


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
    is_rate = plan.measure == SPIKE_EVENTS
    if is_rate:
        own, others = longest(own, EVENTS), longest(others, EVENTS)
    sides = ((plan.method, own), (plan.other, others))
    return dataclasses.replace(
        plan,
        num_seeds=0,
        missing=tuple(name for name, runs in sides if name and not runs),
        keys=_keys(own) if is_rate else (),
        beside_keys=_keys(others) if is_rate else (),
        facts=_rate_texts(plan, own, others) if is_rate else (),
    )


def _compare_values(plan: Comparison, pairs: list[Pair]) -> Comparison:
    """Test the values of two methods, pair by pair."""
    measure, expect, margin = plan.measure, plan.expect, plan.margin
    times = 1.0 if plan.times is None else plan.times
    differences = differences_of(pairs, measure, times)
    p_for, p_against, p_equal = _value_tests(differences, expect, margin)
    # "No worse" is decided on one side of the margin or on the other.
    open_part = (differences, margin)
    if expect == "no worse":
        open_part = (differences - (margin or 0.0), None)
    factor = "" if plan.times is None else f"{times:g} × "
    number = _mean_in_short(measure, differences, min(p_for, p_against))
    if plan.times is not None:
        seen = change_of(pairs, measure)
        number = f"{seen}; second minus {factor}first: {number}"
    facts: tuple[str, ...] = ()
    if measure in GAINS:
        number += beside(pairs, (PRICE,))
        facts = tuple(_beside_facts(plan, pairs))
    return dataclasses.replace(
        plan,
        number=number,
        facts=facts,
        p_for=p_for,
        p_against=p_against,
        p_equal=p_equal,
        seeds_to_decide=pairs_to_decide(*open_part),
        detectable=detectable(differences),
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
    values = numbers or [run.measures[plan.measure] for run in own]
    if not values:
        return _unpaired(plan, own, own)
    mean, excess, p_text = statistics.fmean(values), max(values) - bound, ""
    is_one = len(numbers) == 1
    is_close = is_one and abs(excess) <= (plan.margin or -1.0)
    p_for = float(excess > 0 or is_close)
    p_against = float(excess <= 0 or is_close)
    number, seen = f"{mean:.3g}", f"{mean:.4g}"
    if not numbers:
        number, seen = f"largest {max(values):.3g}", format_list(values, ".3g")
    elif len({*numbers}) > 1:
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
        number=f"{number} (bound {bound:g})",
        test=f"{plan.method} {seen} (bound {bound:g}){p_text}",
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
