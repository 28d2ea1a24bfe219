# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Verdicts on claims: one of nine labels, from all runs that fit the rule."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from adagc_lab.report.formatting import two_digits
from adagc_lab.reproduce.claims import Claim
from adagc_lab.reproduce.comparisons import (
    Comparison,
    Pairing,
    comparisons_of,
    rate_text,
)
from adagc_lab.reproduce.pairs import paired, paired_once
from adagc_lab.reproduce.pool import PooledResults
from adagc_lab.reproduce.results import EVENTS, SPIKE_EVENTS, RunResult, longest
from adagc_lab.reproduce.statistics import (
    ALPHA,
    MIN_SEEDS,
    ONE_SIDED,
    holm,
)

REPRODUCED = "reproduced"
PARTLY = "partly"
CONTRADICTED = "contradicted"
NO_DIFFERENCE = "no difference"
NOT_EXERCISED = "not exercised"
UNDECIDED = "undecided"
NOT_RUN = "not run"
COMPUTED = "computed"
NOT_TESTABLE = "not testable here"
LABELS = {
    REPRODUCED: "every comparison is significant",
    PARTLY: "the direction is seen, but not everywhere, or not down to zero",
    CONTRADICTED: "the opposite is significant, or a zero is broken, with no "
    "fewer events than a control that has so many that zero would be fewer",
    NO_DIFFERENCE: "smaller than a margin, significant or not; rates of "
    "events, or masses where there are none, closer than a factor of 2",
    NOT_EXERCISED: "the control did not show what the method should prevent",
    UNDECIDED: "the runs do not decide",
    NOT_RUN: "a method of the rule has no run",
    COMPUTED: "holds in a model or by arithmetic; nothing was measured",
    NOT_TESTABLE: "the reason is given",
}
"""Label: what it means."""

# What a comparison says: what explains a label, the most last.
_MISSING, _HOLDS, _CALM, _SMALL, _OPEN, _AGAINST, _PART = range(7)

_OF_EXTENSIONS = {REPRODUCED: "holds", CONTRADICTED: "does not hold"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a claim."""

    claim: Claim
    comparisons: tuple[Comparison, ...]
    premises: tuple[Comparison, ...]
    """What the control has to show."""

    controls: Mapping[tuple[str, str], Sequence[RunResult]]
    """Judged runs of the controls by experiment and method."""

    p_for: float
    """Largest p of the comparisons; of a primary claim Holm's adjusted one."""

    p_against: float
    """Smallest p of an opposite times their number, adjusted likewise."""

    other_pairs: Verdict | None = None
    """With the rule made after the runs, :func:`.pairs.paired_once`."""

    @property
    def flips(self) -> bool:
        """Whether that later rule would change the verdict."""
        other = self.other_pairs
        return other is not None and other.verdict != self.verdict

    @property
    def verdict(self) -> str:
        """One of :data:`LABELS`."""
        outcomes = [_outcome(c, self) for c in self.comparisons]
        found, is_sure = {*outcomes}, not self.claim.primary
        if not found:
            return NOT_TESTABLE
        if any(_outcome(c, self) != _HOLDS for c in self.premises):
            return NOT_EXERCISED
        if found == {_HOLDS}:
            if all(len(c.values) == 1 for c in self.comparisons):
                return COMPUTED
            return REPRODUCED if self.p_for <= ONE_SIDED else UNDECIDED
        if found & {_HOLDS, _PART}:
            if _MISSING in found:
                return NOT_RUN
            points_back = any((c.p_for or 0.0) > 0.5 for c in self.comparisons)
            is_open = found == {_HOLDS, _OPEN} and not points_back
            return UNDECIDED if is_open else PARTLY
        if _AGAINST in found:
            is_broken = any(c.is_no_fewer for c in self.comparisons)
            is_sure |= is_broken or self.p_against <= ONE_SIDED
            return CONTRADICTED if is_sure else UNDECIDED
        if _MISSING in found:
            return NOT_RUN
        if _OPEN in found:
            return UNDECIDED
        return NO_DIFFERENCE if _SMALL in found else NOT_EXERCISED

    @property
    def label(self) -> str:
        """The verdict in words; what is not the paper's is not reproduced."""
        if self.claim.extension:
            return _OF_EXTENSIONS.get(self.verdict, self.verdict)
        return self.verdict

    @property
    def number(self) -> str:
        """The comparison that decided it in one number, behind its names.

        Two where one holds and the opposite of another is significant.
        """
        if not self.comparisons:
            return ""
        outcomes = [_outcome(c, self) for c in self.comparisons]
        shown = [max(outcomes)]
        if {_HOLDS, _AGAINST} <= {*outcomes}:
            shown = [_HOLDS, _AGAINST]
        texts = [
            _number_of(self.comparisons[outcomes.index(one)]) for one in shown
        ]
        return "; but ".join(texts)

    @property
    def evidence(self) -> str:
        """The numbers that decided it, a line each, or why nothing could."""
        claim, label = self.claim, self.verdict
        if claim.not_testable is not None:
            return claim.not_testable
        parts = _grouped(self.comparisons, label)
        parts += [f"premise: {part}" for part in _grouped(self.premises, label)]
        parts += [
            f"control in {experiment}: {rate_text(method, runs)}"
            for (experiment, method), runs in self.controls.items()
        ]
        smaller = min(self.p_for, self.p_against)
        if claim.primary and 0 < smaller < 1:
            parts.append(f"p {smaller:.3g} after Holm over the primary claims")
        return "\n".join(parts)

    @property
    def reasons(self) -> list[str]:
        """The evidence, and what the rule does not say."""
        lines = self.evidence.splitlines()
        if self.flips and self.other_pairs is not None:
            lines.append(
                "One pair a seed, with stored losses and a known processor "
                "where there are such, a rule made after the runs, would say "
                f"{self.other_pairs.label}: {self.other_pairs.number}. It does "
                "not count."
            )
        return [*lines, *filter(None, [self.claim.note])]

    def as_json(self) -> dict[str, Any]:
        """What an independent check needs."""
        return {
            "id": self.claim.id,
            "where": self.claim.where,
            "claim": self.claim.claim,
            "verdict": self.verdict,
            "extension": self.claim.extension,
            "primary": self.claim.primary,
            "number": self.number,
            "other_pairs": self.other_pairs and self.other_pairs.verdict,
            "p_for": self.p_for,
            "p_against": self.p_against,
            "control_is_calm": self.claim.control_is_calm,
            "comparisons": [c.as_json() for c in self.comparisons],
            "premises": [c.as_json() for c in self.premises],
            "controls": {
                f"{experiment}, {method}": [run.run_id for run in runs]
                for (experiment, method), runs in self.controls.items()
            },
        }


def judge(claims: Sequence[Claim], source: PooledResults) -> list[Verdict]:
    """Judge claims together: Holm's correction is over the primary ones.

    A comparison holds, or its opposite does, at p 0.025 each, the opposite
    with Bonferroni's correction over the claim's comparisons. A difference
    smaller than the margin is none, significant or not. An event where there
    should be none leaves a part if the events are fewer than the control's,
    nothing if they are no fewer and zero would be significantly fewer. Every
    other verdict takes :data:`~.statistics.MIN_SEEDS` pairs. :data:`LABELS`
    says what follows.

    Without the six primary ones the correction is over those that are there.
    """
    return [
        dataclasses.replace(verdict, other_pairs=other)
        for verdict, other in zip(
            _judged(claims, source, paired),
            _judged(claims, source, paired_once),
            strict=True,
        )
    ]


def _judged(
    claims: Sequence[Claim], source: PooledResults, pairing: Pairing
) -> list[Verdict]:
    found = [_tested(claim, source, pairing) for claim in claims]
    primary = [i for i, claim in enumerate(claims) if claim.primary]
    adjusted = zip(
        holm([found[i].p_for for i in primary]),
        holm([found[i].p_against for i in primary]),
        strict=True,
    )
    for i, (p_for, p_against) in zip(primary, adjusted, strict=True):
        found[i] = dataclasses.replace(
            found[i], p_for=p_for, p_against=p_against
        )
    return found


def counted(verdicts: Sequence[Verdict]) -> str:
    """``"12 reproduced, 3 contradicted, 9 undecided"``."""
    counts = Counter(verdict.label for verdict in verdicts)
    order = [*LABELS, *_OF_EXTENSIONS.values()]
    several = {"holds": "hold", "does not hold": "do not hold"}
    return ", ".join(
        f"{counts[label]} "
        f"{several.get(label, label) if counts[label] > 1 else label}"
        for label in sorted(counts, key=order.index)
    )


def _tested(claim: Claim, source: PooledResults, pairing: Pairing) -> Verdict:
    comparisons, premises = (
        tuple(
            c for rule in rules for c in comparisons_of(rule, source, pairing)
        )
        for rules in (claim.conditions, claim.premises)
    )
    against = [
        c.p_against
        for c in comparisons
        if c.p_against is not None and (c.has_enough or c.p_against == 0)
    ]
    places = dict.fromkeys(
        (c.target or "", c.experiment or "")
        for c in claim.conditions
        if c.measure == SPIKE_EVENTS
        and (c.target, c.experiment) == (claim.target, claim.experiment)
    )
    controls = {
        (place, method): longest(source.runs(target, place, method), EVENTS)
        for target, place in places
        for method in claim.controls
    }
    p_for = [1.0 if c.p_for is None else c.p_for for c in comparisons]
    return Verdict(
        claim=claim,
        comparisons=comparisons,
        premises=premises,
        controls={key: runs for key, runs in controls.items() if runs},
        p_for=max(p_for, default=1.0),
        p_against=min([1.0, *(len(comparisons) * p for p in against)]),
    )


def _number_of(c: Comparison) -> str:
    """A comparison's number behind its names, but "GlobalGC → AdaGC"."""
    usual = "AdaGC", "GlobalGC"
    if c.other is None or (c.method, c.other) == usual or not c.number:
        return c.number
    return f"{c.other} → {c.method}: {c.number}"


def _outcome(c: Comparison, verdict: Verdict) -> int:
    """What one comparison says for itself."""
    if c.missing or c.num_seeds == 0:
        return _MISSING
    against = 1.0 if c.p_against is None else c.p_against
    is_opposite = len(verdict.comparisons) * against <= ONE_SIDED
    if c.p_fewer is not None and c.is_no_fewer:
        return _AGAINST
    if not c.has_enough:
        return _AGAINST if c.p_against == 0 else _OPEN
    if c.p_fewer is not None:
        if c.p_fewer <= ONE_SIDED:
            return _PART
        return _AGAINST if is_opposite else _OPEN
    if c.is_small:
        return _SMALL
    if c.holds:
        return _HOLDS
    if is_opposite:
        return _AGAINST
    if c.is_blind and c.expect not in ("higher", "no worse"):
        if not verdict.claim.control_is_calm:
            return _CALM
        is_alike = c.p_alike is not None and c.p_alike <= ALPHA
        return _SMALL if is_alike else _OPEN
    return _OPEN


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


def _texts(c: Comparison, label: str) -> list[str]:
    """Its facts and its test; if it keeps a verdict open, what is missing."""
    if c.num_seeds == 0:
        return [*c.facts]
    notes = []
    if c.is_small:
        p = "" if c.values else f", p {c.p_equal:.3g}"
        is_rate = c.measure == SPIKE_EVENTS
        band = f"a factor of {c.margin:g}" if is_rate else f"±{c.margin:g}"
        notes.append(f"within {band}{p}")
    elif label == UNDECIDED and c.num_seeds is not None and not c.holds:
        if not c.has_enough:
            notes.append(f"{c.num_seeds} of {MIN_SEEDS} seeds")
        if (c.seeds_to_decide or 0) > c.num_seeds:
            notes.append(f"{c.seeds_to_decide} would decide")
        if c.detectable is not None:
            notes.append(f"these see {two_digits(c.detectable)}")
    test = c.test
    if notes:
        test = f"{test} ({', '.join(notes)})".lstrip()
    return [*c.facts, *([test] if test else [])]
