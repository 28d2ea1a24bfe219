# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Verdicts that follow from numbers alone."""

import math

import pytest
from adagc_lab.reproduce.claims import Claim
from adagc_lab.reproduce.pairs import beside, paired
from adagc_lab.reproduce.verdicts import (
    COMPUTED,
    CONTRADICTED,
    NO_DIFFERENCE,
    NOT_EXERCISED,
    NOT_RUN,
    NOT_TESTABLE,
    PARTLY,
    REPRODUCED,
    UNDECIDED,
    counted,
    judge,
)
from lab.reproduce.conftest import cell, make_claim
from lab.reproduce.conftest import rule as loss


class Runs:
    """Runs of made-up methods: ``{method: {measure: [per seed]}}``."""

    def __init__(self, numbers=None, **methods):
        self._numbers = numbers or {}
        self._runs = {
            name: [
                cell(
                    f"{name}{seed}",
                    name,
                    seed,
                    **dict(zip(values, map(float, row), strict=True)),
                )
                for seed, row in enumerate(zip(*values.values(), strict=True))
            ]
            for name, values in methods.items()
        }

    def runs(self, target, experiment, method, seeds=()):
        return self._runs.get(method, [])

    def numbers(self, target, experiment, method, measure):
        return self._numbers.get(method, ())


def events(*counts, judged=2000):
    return {"events_1000": counts, "judged_1000": [judged] * len(counts)}


def losses(*offsets):
    return {"final_loss": [seed + x for seed, x in enumerate(offsets)]}


def spikes(expect="lower", **fields):
    to = () if expect == "occurs" else ("B",)
    return loss(expect, "spike_events", to, **{"margin": 2.0, **fields})


def at_most(bound, **fields):
    return loss("at most", "excess_worst", (), bound=bound, **fields)


def verdict(source, *conditions, **fields):
    (found,) = judge([make_claim(*conditions, **fields)], source)
    return found


ZEROS, ONES = events(*[0] * 8), events(*[1] * 8)
FEW_STEPS = events(*[0] * 8, judged=1000)
MANY, TWICE = events(*[5] * 8), events(*[10] * 8)
FOURFOLD = events(*[20] * 8)
CALM, DISTURBED = ({**ZEROS, "spike_mass": [x] * 8} for x in (0.1, 5.0))
FIVE_CALM, FIVE_DISTURBED = (
    {**events(*[0] * 5), "spike_mass": [x] * 5} for x in (0.1, 5.0)
)
FEWER_STEPS = events(*[0] * 8, judged=100)
LOW = losses(-0.2, -0.1, -0.3, -0.2, -0.1, -0.2, -0.1, -0.3)
MIXED = losses(-0.2, 0.1, -0.3, 0.2, -0.1, 0.2, -0.1, 0.3)
SAME = losses(*[0] * 8)
MINUS, FIVE_ZEROS = losses(*[-1] * 5), losses(*[0] * 5)
DIVERGED = {"final_loss": [math.nan] * 8}
ZERO, HIGHER = spikes(expect="zero"), spikes(expect="higher")
NO_MORE = spikes(expect="no worse")
OCCURS = spikes(expect="occurs", margin=0.3)
BOTH, NEITHER = (
    loss(to=("B", "C"), margin=0.5),
    loss("higher", to=("B", "C")),
)
FIVE = {"A": [1, 2, 1, 2, 1]}


@pytest.mark.parametrize(
    ("source", "condition", "expected"),
    [
        # Rates of events.
        (Runs(A=ZEROS, B=ONES), spikes(), REPRODUCED),
        (Runs(A=ZEROS, B=ONES), ZERO, REPRODUCED),
        (Runs(A=ONES, B=ZEROS), spikes(), CONTRADICTED),
        (Runs(A=ZEROS, B=ONES), HIGHER, CONTRADICTED),
        (Runs(A=ONES, B=ZEROS), HIGHER, REPRODUCED),
        (Runs(A=ZEROS, B=ZEROS), ZERO, NOT_EXERCISED),
        (Runs(A=ZEROS, B=ZEROS), HIGHER, UNDECIDED),
        (Runs(A=ONES, B=ONES), spikes(), UNDECIDED),
        # Only many events show that two rates are within a factor of 2.
        (Runs(A=MANY, B=MANY), spikes(), NO_DIFFERENCE),
        (Runs(A=MANY, B=TWICE), HIGHER, CONTRADICTED),
        (Runs(A=MANY, B=MANY), NO_MORE, REPRODUCED),
        (Runs(A=ONES, B=ONES), NO_MORE, UNDECIDED),
        (Runs(A=ONES, B=MANY), NO_MORE, REPRODUCED),
        (Runs(A=FOURFOLD, B=MANY), NO_MORE, CONTRADICTED),
        # Without events the masses decide, by a factor of 2, of 8 seeds.
        (Runs(A=CALM, B=DISTURBED), spikes(), REPRODUCED),
        (Runs(A=CALM, B=DISTURBED), ZERO, REPRODUCED),
        (Runs(A=DISTURBED, B=CALM), ZERO, CONTRADICTED),
        (Runs(A=DISTURBED, B=CALM), HIGHER, REPRODUCED),
        (Runs(A=CALM, B=CALM), HIGHER, NO_DIFFERENCE),
        (Runs(A=CALM, B=CALM), spikes(), NOT_EXERCISED),
        (Runs(A=CALM, B=CALM), NO_MORE, REPRODUCED),
        (Runs(A=DISTURBED, B=CALM), NO_MORE, CONTRADICTED),
        (Runs(A=FIVE_CALM, B=FIVE_CALM), NO_MORE, UNDECIDED),
        (Runs(A=FIVE_CALM, B=FIVE_DISTURBED), spikes(), UNDECIDED),
        (Runs(A=events(*[0] * 7), B=events(*[1] * 7)), spikes(), UNDECIDED),
        # A zero that an event breaks is judged by its size.
        (Runs(A=events(1, *[0] * 7), B=ONES), ZERO, PARTLY),
        (Runs(A=events(1, 1), B=events(1, 2)), ZERO, UNDECIDED),
        (Runs(A=events(1, *[0] * 7), B=ZEROS), ZERO, UNDECIDED),
        (Runs(A=ONES, B=ONES), ZERO, CONTRADICTED),
        (Runs(A=MANY, B=ZEROS), ZERO, CONTRADICTED),
        # A tie above zero is evidence only with enough steps.
        (Runs(A=FEW_STEPS, B=FEW_STEPS), HIGHER, UNDECIDED),
        # Occurrence takes one event, its denial enough steps.
        (Runs(A=events(*[0] * 7, 1)), OCCURS, REPRODUCED),
        (Runs(A=ZEROS), OCCURS, CONTRADICTED),
        (Runs(A=FEWER_STEPS), OCCURS, UNDECIDED),
        # Paired values.
        (Runs(A=LOW, B=SAME), loss(), REPRODUCED),
        (Runs(A=LOW, B=SAME), loss("higher"), CONTRADICTED),
        (Runs(A=MIXED, B=SAME), loss(), UNDECIDED),
        (Runs(A=MIXED, B=SAME), loss(margin=0.5), NO_DIFFERENCE),
        (Runs(A=MIXED, B=SAME), loss("no worse", margin=0.5), REPRODUCED),
        (Runs(A=MIXED, B=SAME), loss("no worse", margin=0.01), UNDECIDED),
        (Runs(A=LOW, B=SAME), loss("equal", margin=0.5), REPRODUCED),
        (Runs(A=LOW, B=SAME), loss("equal", margin=0.05), CONTRADICTED),
        # A run that diverged is infinitely high.
        (Runs(A=SAME, B=DIVERGED), loss(), REPRODUCED),
        # Every comparison counts; against both, twice the p of 1/256 is still
        # below 0.05.
        (Runs(A=LOW, B=SAME, C=LOW), BOTH, NO_DIFFERENCE),
        (Runs(A=LOW, B=SAME, C=LOW), loss(to=("B", "C")), PARTLY),
        (Runs(A=LOW, B=SAME), loss(to=("B", "C")), NOT_RUN),
        (Runs(A=LOW, B=SAME, C=LOW), NEITHER, CONTRADICTED),
        # Small wins over significant; half of the other has no margin.
        (Runs(A=LOW, B=SAME), loss("higher", margin=0.5), NO_DIFFERENCE),
        (Runs(A=LOW, B=SAME), loss(margin=0.5, times=2.0), REPRODUCED),
        # Bounds of numbers, of their mean, of every run.
        (Runs({"A": [0.9]}), at_most(1), COMPUTED),
        (Runs({"A": [1.1]}), at_most(1), CONTRADICTED),
        (Runs({"A": [1.1]}), at_most(1, margin=0.2), NO_DIFFERENCE),
        (Runs(FIVE), at_most(2.5), REPRODUCED),
        (Runs({"A": [1, 1]}), at_most(1), REPRODUCED),
        (Runs(FIVE), at_most(0.5), CONTRADICTED),
        (Runs(FIVE), at_most(1.5), UNDECIDED),
        (Runs(A={"excess_worst": [1] * 8}), at_most(1), REPRODUCED),
        (Runs(A={"excess_worst": [1, 1, 2]}), at_most(1), CONTRADICTED),
        (Runs(A={"excess_worst": [1, 1, 1]}), at_most(1), UNDECIDED),
        (Runs(), at_most(1), NOT_RUN),
    ],
)
def test_a_condition_decides(source, condition, expected):
    assert verdict(source, condition).verdict == expected


SEEN = "A: 1 in 4,000 judged steps (0 / 1)"


@pytest.mark.parametrize(
    ("source", "condition", "expected", "evidence"),
    [
        # Events are shown without any control.
        (Runs(A=events(0, 1)), ZERO, NOT_RUN, SEEN),
        # A missing control does not hide the rest.
        (Runs(A=ZEROS), ZERO, NOT_RUN, "no run yet of B"),
        (Runs(A=MANY, B=MANY), HIGHER, NO_DIFFERENCE, "of 2, p 0.00151"),
        (Runs(A=CALM, B=DISTURBED), ZERO, REPRODUCED, "below, by spike mass"),
        (Runs(A=MIXED, B=SAME), loss(margin=0.1), UNDECIDED, "decide, these "),
        # Five seeds of one sign are not enough.
        (Runs(A=MINUS, B=FIVE_ZEROS), loss(), UNDECIDED, "(5 of 8 seeds, 8 w"),
    ],
)
def test_the_evidence_says_why(source, condition, expected, evidence):
    found = verdict(source, condition)
    assert found.verdict == expected
    assert evidence in found.evidence


def test_no_worse_is_decided_by_the_distance_to_the_margin():
    # Mean 0.09, deviation 0.0321: (2.802 * 0.0321 / (0.1 - 0.09))^2 = 80.7.
    near = losses(0.06, 0.12, 0.06, 0.12, 0.06, 0.12, 0.06, 0.12)
    found = verdict(Runs(A=near, B=SAME), loss("no worse", margin=0.1))
    assert found.comparisons[0].seeds_to_decide == 81


def test_only_what_keeps_a_verdict_open_says_what_is_missing():
    small, open_one = loss(to=("C",), margin=0.5), loss(to=("D",), margin=0.02)
    source = Runs(A=LOW, B=SAME, C=LOW, D=losses(*[-0.2] * 8))
    found = verdict(source, small, open_one)
    assert found.verdict == UNDECIDED
    to_c, to_d = found.evidence.splitlines()
    assert to_c.endswith("(within ±0.5, p 0.00391)")
    assert "these see 0.083" in to_d
    found = verdict(source, loss(), small)
    assert found.verdict == PARTLY
    to_b, again = found.evidence.splitlines()
    assert to_b.endswith("lower: p 0.00391")
    assert again == to_c.removeprefix("e, final loss: ")


def test_a_broken_zero_says_how_large():
    def with_size(counts, rise, mass):
        return {
            **events(*counts),
            "spikes_1000": [3 * n for n in counts],
            "worst_jump": [rise] * 8,
            "spike_mass": [mass] * 8,
            "end_loss": [0.5 + mass / 100] * 8,
        }

    source = Runs(
        A=with_size([1] + 7 * [0], 0.16, 0.25), B=with_size([2] * 8, 0.5, 4)
    )
    found = verdict(source, ZERO)
    assert (
        found.number
        == "B → A: 16 → 1 events, ratio 0.062 (0.00-0.4), p 0.0039; "
        "mass 4 → 0.25, p 0.0078; end -0.0375 nat, p 0.0078"
    )
    for part in (
        "size, A: 3 steps, largest rise of a run 0.16-0.16 nat",
        "size, B: 48 steps, largest rise of a run 0.50-0.50 nat",
        "spike mass per run in 8 pairs, B → A: 4 → 0.25 nat × steps",
        "B → A: 0.54 → 0.5025 nat, higher in 0 of 8 seeds",
    ):
        assert part in found.evidence


def test_a_premise_and_a_calm_control():
    premise = loss("higher", methods=("C",), margin=0.01)
    for c, label in ((losses(*[1] * 8), CONTRADICTED), (SAME, NOT_EXERCISED)):
        source = Runs(A=LOW, B=SAME, C=c)
        found = verdict(source, loss("higher"), exercised_if=[premise])
        assert found.verdict == label
        assert "premise: e, final loss: C minus B" in found.evidence
    for own, other, label in (
        (CALM, CALM, NO_DIFFERENCE),
        (ZEROS, ZEROS, UNDECIDED),
        (FIVE_CALM, FIVE_CALM, UNDECIDED),
    ):
        found = verdict(Runs(A=own, B=other), ZERO, control_is_calm=True)
        assert found.verdict == label


def test_prices_and_sums_of_several_lengths_are_not_averaged():
    class TwoLengths:
        def runs(self, target, experiment, method, seeds=()):
            values = {"A": (3.0, 9.0), "B": (2.0, 10.0)}[method]
            return [
                cell(
                    f"{method}{seed}{cpu}",
                    method,
                    seed,
                    steps,
                    cpu=cpu,
                    excess_area=value * steps,
                    end_loss=value,
                )
                for seed in range(8)
                for cpu, steps, value in zip(
                    ("new", "old"), (1000, 2000), values, strict=True
                )
            ]

        def numbers(self, *place):
            return ()

    found = verdict(TwoLengths(), loss(measure="excess_area"))
    assert found.number == (
        "B → A: -2e+03 nat × steps (-2e+03 to -2e+03), p 0.0039; "
        "end -1 nat, p 0.0078"
    )
    pairs = paired(
        TwoLengths().runs("", "", "A"),
        TwoLengths().runs("", "", "B"),
        "end_loss",
    )
    assert beside(pairs, ("end_loss",)) == (
        "; end +1 nat at 1,000 steps (8 pairs), p 0.0078"
        "; end -1 nat at 2,000 steps (8 pairs), p 0.0078"
    )


def test_runs_pair_on_one_processor_alone():
    source = Runs(A=LOW, B=SAME)
    for run in source.runs("t", "e", "B")[:3]:
        run.machine.update(processor="Example 9000", instruction_sets=[])
    (comparison,) = verdict(source, loss()).comparisons
    assert comparison.num_seeds == 5
    for run in source.runs("t", "e", "B"):
        run.machine.update(processor="Example 9000", instruction_sets=[])
    found = verdict(source, loss())
    assert found.verdict == NOT_RUN
    assert "no two runs of one seed, length and processor" in found.evidence


def test_primary_claims_share_an_error():
    # 8 seeds, one against: p 2/256 alone, above 0.05 among seven of p 1.
    a = losses(0.01, *[-1] * 7)
    alone = verdict(Runs(A=a, B=SAME), loss())
    assert alone.verdict == REPRODUCED
    source = Runs(A=a, B=SAME)
    rules = [loss(), *[loss(to=("C",))] * 7]
    claims = [
        make_claim(rule, primary=True, id=str(i))
        for i, rule in enumerate(rules)
    ]
    first = judge(claims, source)[0]
    assert first.p_for == pytest.approx(8 * alone.p_for)
    assert first.verdict == UNDECIDED
    assert "after Holm" in first.evidence


def test_controls_stand_beside_the_evidence():
    source = Runs(A=ZEROS, B=ONES, C=ZEROS)
    found = verdict(source, spikes(), controls=["C", "missing"])
    assert "control in e: C: 0 in 16,000 judged steps" in found.evidence
    assert "missing" not in found.evidence


def test_what_cannot_be_tested_says_why():
    given = Claim(id="c", where="", claim="", not_testable="Too large.")
    (found,) = judge([given], Runs())
    assert (found.verdict, found.evidence) == (NOT_TESTABLE, "Too large.")


def test_what_is_not_the_papers_holds_or_does_not():
    source = Runs(A=LOW, B=SAME)
    labels = [
        verdict(source, loss(expect), extension=True).label
        for expect in ("lower", "higher")
    ]
    assert labels == ["holds", "does not hold"]
    assert counted([verdict(source, loss())]) == "1 reproduced"
