# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Verdicts on claims: one of five labels, from all runs that fit the rule."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from paddle_adagc.lab.report.formatting import two_digits
from paddle_adagc.lab.reproduce.claims import SPIKE_EVENTS, Claim
from paddle_adagc.lab.reproduce.comparisons import (
    MIN_SEEDS,
    Comparison,
    compare,
    judged,
    rate_text,
)
from paddle_adagc.lab.reproduce.pool import PooledResults
from paddle_adagc.lab.reproduce.results import CellResult
from paddle_adagc.lab.reproduce.statistics import ALPHA, holm

REPRODUCED = "reproduced"
CONTRADICTED = "contradicted"
NO_DIFFERENCE = "no difference"
UNDECIDED = "undecided"
NOT_TESTABLE = "not testable here"
LABELS = (REPRODUCED, CONTRADICTED, NO_DIFFERENCE, UNDECIDED, NOT_TESTABLE)

_OF_EXTENSIONS = {REPRODUCED: "holds", CONTRADICTED: "does not hold"}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    claim: Claim
    verdict: str
    """One of :data:`LABELS`."""

    evidence: str
    """The numbers that decided it, a line each, or why nothing could."""

    comparisons: tuple[Comparison, ...] = ()
    p_for: float = 1.0
    """Largest p of the comparisons; of a primary claim Holm's adjusted one."""

    p_against: float = 1.0
    """Smallest p of an opposite times their number, adjusted likewise."""

    control_keys: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )
    """Runs of the controls by method."""

    @property
    def label(self) -> str:
        """The verdict in words; what is not the paper's is not reproduced."""
        if self.claim.extension:
            return _OF_EXTENSIONS.get(self.verdict, self.verdict)
        return self.verdict


def judge(claims: Sequence[Claim], source: PooledResults) -> list[Verdict]:
    """Judge claims together: Holm's correction is over the primary ones.

    A claim is reproduced if all of its comparisons are significant,
    contradicted if the opposite of one is (Bonferroni over its comparisons),
    without difference if every comparison is significant or smaller than its
    margin, else undecided. An event where there should be none contradicts by
    itself. Every other verdict takes :data:`~.comparisons.MIN_SEEDS` pairs.

    Without the six primary ones the correction is over those that are there.
    """
    tested = [_tested(claim, source) for claim in claims]
    primary = [i for i, claim in enumerate(claims) if claim.primary]
    p_for = holm([tested[i].p_for for i in primary])
    p_against = holm([tested[i].p_against for i in primary])
    for place, i in enumerate(primary):
        tested[i] = dataclasses.replace(
            tested[i], p_for=p_for[place], p_against=p_against[place]
        )
    return [_labelled(verdict, source) for verdict in tested]


def counted(verdicts: Sequence[Verdict]) -> str:
    """``"12 reproduced, 3 contradicted, 9 undecided"``."""
    counts = Counter(verdict.label for verdict in verdicts)
    order = [*LABELS, *_OF_EXTENSIONS.values()]
    labels = sorted(counts, key=order.index)
    return ", ".join(f"{counts[label]} {label}" for label in labels)


def _tested(claim: Claim, source: PooledResults) -> Verdict:
    if claim.target is None:
        return Verdict(claim, NOT_TESTABLE, claim.not_testable or "")
    comparisons = tuple(
        comparison
        for condition in claim.conditions
        for comparison in compare(condition, source)
    )
    against = [
        c.p_against
        for c in comparisons
        if c.p_against is not None and (c.has_enough or c.p_against == 0)
    ]
    return Verdict(
        claim,
        UNDECIDED,
        "",
        comparisons,
        max(1.0 if c.p_for is None else c.p_for for c in comparisons),
        min(1.0, len(comparisons) * min(against, default=1.0)),
    )


def _labelled(verdict: Verdict, source: PooledResults) -> Verdict:
    if verdict.verdict == NOT_TESTABLE:
        return verdict
    label = _label(verdict)
    parts = _grouped(verdict.comparisons, label)
    controls = _controls(verdict.claim, source)
    parts += [
        f"control in {experiment}: {rate_text(method, runs)}"
        for (experiment, method), runs in controls.items()
    ]
    smaller = min(verdict.p_for, verdict.p_against)
    if verdict.claim.primary and 0 < smaller < 1:
        parts.append(f"p {smaller:.3g} after Holm over the primary claims")
    return dataclasses.replace(
        verdict,
        verdict=label,
        evidence="\n".join(parts),
        control_keys={
            f"{experiment}, {method}": tuple(run.run_id for run in runs)
            for (experiment, method), runs in controls.items()
        },
    )


def _label(verdict: Verdict) -> str:
    if verdict.p_against <= ALPHA:
        return CONTRADICTED
    if not all(c.has_enough for c in verdict.comparisons):
        return UNDECIDED
    if verdict.p_for <= ALPHA:
        return REPRODUCED
    open_ones = [c for c in verdict.comparisons if not _is_settled(c)]
    if open_ones and all(map(_is_small, open_ones)):
        return NO_DIFFERENCE
    return UNDECIDED


def _grouped(comparisons: Sequence[Comparison], label: str) -> list[str]:
    """Lines by experiment and measure, every fact once."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in comparisons:
        key = (comparison.experiment, comparison.measure)
        groups.setdefault(key, []).append(comparison)
    parts = []
    for (experiment, measure), group in groups.items():
        texts = [text for c in group for text in _texts(c, label)]
        missing = dict.fromkeys(name for c in group for name in c.missing)
        if missing:
            texts.append(f"no run yet of {', '.join(missing)}")
        if not texts:
            texts.append("no two runs of one seed, length and processor yet")
        name = measure.replace("_", " ")
        first, *rest = dict.fromkeys(texts)
        parts += [f"{experiment}, {name}: {first}", *rest]
    return parts


def _texts(comparison: Comparison, label: str) -> list[str]:
    """Its facts and its test; if it keeps a verdict open, what is missing."""
    if comparison.num_seeds == 0:
        return [*comparison.facts]
    notes = []
    p_equal = comparison.p_equal
    if label in (NO_DIFFERENCE, UNDECIDED) and _is_small(comparison):
        p = "" if comparison.values else f", p {p_equal:.3g}"
        notes.append(f"within ±{comparison.margin:g}{p}")
    elif label == UNDECIDED and not _is_settled(comparison):
        notes += _what_is_missing(comparison)
    test = comparison.test
    if notes:
        test = f"{test} ({', '.join(notes)})".lstrip()
    return [*comparison.facts, *([test] if test else [])]


def _is_settled(comparison: Comparison) -> bool:
    return comparison.has_enough and (comparison.p_for or 0.0) <= ALPHA


def _is_small(comparison: Comparison) -> bool:
    p_equal = comparison.p_equal
    return comparison.has_enough and p_equal is not None and p_equal <= ALPHA


def _what_is_missing(comparison: Comparison) -> list[str]:
    num_seeds = comparison.num_seeds
    notes: list[str] = []
    if num_seeds is None:
        return notes
    if not comparison.has_enough:
        notes.append(f"{num_seeds} of {MIN_SEEDS} seeds")
    if (comparison.seeds_to_decide or 0) > num_seeds:
        notes.append(f"{comparison.seeds_to_decide} would decide")
    if comparison.detectable is not None:
        notes.append(f"these see {two_digits(comparison.detectable)}")
    return notes


def _controls(
    claim: Claim, source: PooledResults
) -> dict[tuple[str, str], list[CellResult]]:
    """Return the controls' judged runs by experiment and method."""
    places = dict.fromkeys(
        (c.target or "", c.experiment or "")
        for c in claim.conditions
        if c.measure == SPIKE_EVENTS
    )
    found = {
        (experiment, method): judged(source.runs(target, experiment, method))
        for target, experiment in places
        for method in claim.controls
    }
    return {key: runs for key, runs in found.items() if runs}
