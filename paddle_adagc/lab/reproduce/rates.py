# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spike events of one method against another's, as rates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from paddle_adagc.lab.report.formatting import format_list
from paddle_adagc.lab.reproduce.comparison import (
    MIN_SEEDS,
    Comparison,
    p_text,
    without_pairs,
)
from paddle_adagc.lab.reproduce.pool import longest, paired
from paddle_adagc.lab.reproduce.results import CellResult
from paddle_adagc.lab.reproduce.statistics import (
    Rate,
    clustered_rate_p,
    rate_seeds_to_decide,
)

EVENTS, JUDGED = "events_1000", "judged_1000"


def rate_text(method: str, runs: Sequence[CellResult]) -> str:
    """``"AdaGC: 1 in 14,000 judged steps (0 / 0 / 0 / 0 / 1), 0.07 (...)"``.

    The last numbers are the rate per 1,000 steps and its exact 95% limits.
    """
    counts = [int(run.measures[EVENTS]) for run in runs]
    rate = _rate(runs)
    low, high = rate.interval
    return (
        f"{method}: {rate.events:,} in {rate.steps:,} judged steps "
        f"({format_list(counts)}), {rate.value:.2f} ({low:.2f}-{high:.2f}) per "
        "1,000"
    )


def judged(runs: Sequence[CellResult]) -> list[CellResult]:
    """Return the longest run of every seed that has judged steps."""
    return [
        r
        for r in longest(runs)
        if r.measures.get(JUDGED) and EVENTS in r.measures
    ]


def compare_events(
    runs: Sequence[CellResult],
    others: Sequence[CellResult],
    fields: Mapping[str, Any],
) -> Comparison:
    """Test the event rates of two methods, pair by pair."""
    own = judged(runs)
    pairs = [
        pair
        for pair in paired(runs, others, EVENTS)
        if pair[0].measures.get(JUDGED) and pair[1].measures.get(JUDGED)
    ]
    is_refuted = fields["expect"] == "zero" and any(
        run.measures[EVENTS] for run in own
    )
    if is_refuted:
        return Comparison(
            **fields,
            keys=tuple(run.run_id for run in own),
            num_seeds=len(own),
            p_for=1.0,
            p_against=0.0,
            beside_keys=tuple(run.run_id for run in judged(others)),
            facts=_rates(fields, own, judged(others)),
        )
    if not pairs:
        return _unpaired(fields, own, judged(others))
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    counts = [
        [int(r.measures[EVENTS]) for r in side] for side in (first, second)
    ]
    steps = [
        [int(r.measures[JUDGED]) for r in side] for side in (first, second)
    ]
    less, greater = (
        clustered_rate_p(counts[0], steps[0], counts[1], steps[1], alternative)
        for alternative in ("less", "greater")
    )
    margin = fields["margin"]
    p_equal = None
    if margin is not None:
        p_equal = max(
            _rate(first).p_below(margin), _rate(second).p_below(margin)
        )
    is_higher = fields["expect"] == "higher"
    return Comparison(
        **fields,
        keys=tuple(first.run_id for first, _ in pairs),
        other_keys=tuple(second.run_id for _, second in pairs),
        num_seeds=len(pairs),
        p_for=greater if is_higher else less,
        p_against=less if is_higher else greater,
        p_equal=p_equal,
        seeds_to_decide=rate_seeds_to_decide(
            _rate(first), _rate(second), len(pairs), margin, MIN_SEEDS
        ),
        facts=_rates(fields, first, second),
        test=f"{fields['method']} {'above' if is_higher else 'below'} "
        f"{fields['other']}: "
        f"{p_text(*((greater, less) if is_higher else (less, greater)))}",
    )


def occurrence(
    runs: Sequence[CellResult], fields: Mapping[str, Any]
) -> Comparison:
    """Whether a method has any event; the margin is the rate that it denies."""
    own = judged(runs)
    if not own:
        return _unpaired(fields, own, ())
    rate, margin = _rate(own), fields["margin"]
    p_against, test = 1.0, f"{fields['method']} has at least one"
    if not rate.events and margin is not None:
        p_against = rate.p_below(margin)
        test = f"{fields['method']} below {margin:g} per 1,000: "
        test += f"p {p_against:.3g}"
    return Comparison(
        **fields,
        keys=tuple(run.run_id for run in own),
        num_seeds=len(own),
        p_for=0.0 if rate.events else 1.0,
        p_against=p_against,
        facts=_rates(fields, own, ()),
        test=test,
    )


def _unpaired(
    fields: Mapping[str, Any],
    own: Sequence[CellResult],
    others: Sequence[CellResult],
) -> Comparison:
    """No pair, but the rates of the side that has runs."""
    return dataclasses.replace(
        without_pairs(fields, own, others),
        keys=tuple(run.run_id for run in own),
        beside_keys=tuple(run.run_id for run in others),
        facts=_rates(fields, own, others),
    )


def _rates(
    fields: Mapping[str, Any],
    own: Sequence[CellResult],
    others: Sequence[CellResult],
) -> tuple[str, ...]:
    """Return both sides' rates, as far as there are judged runs."""
    sides = ((fields["method"], own), (fields.get("other"), others))
    return tuple(rate_text(str(name), runs) for name, runs in sides if runs)


def _rate(runs: Sequence[CellResult]) -> Rate:
    return Rate(
        sum(int(run.measures[EVENTS]) for run in runs),
        sum(int(run.measures[JUDGED]) for run in runs),
    )
