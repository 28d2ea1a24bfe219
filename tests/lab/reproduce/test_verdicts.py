# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Verdicts that follow from numbers alone."""

import dataclasses
import math

import pytest

from paddle_adagc.lab.reproduce.claims import Claim, Condition
from paddle_adagc.lab.reproduce.results import CellResult
from paddle_adagc.lab.reproduce.verdicts import (
    CONTRADICTED,
    NO_DIFFERENCE,
    NOT_TESTABLE,
    REPRODUCED,
    UNDECIDED,
    counted,
    judge,
)


class Runs:
    """Runs of made-up methods: ``{method: {measure: [per seed]}}``."""

    def __init__(self, numbers=None, **methods):
        self._numbers = numbers or {}
        self._runs = {
            name.replace("_", " "): [
                CellResult(
                    method=name,
                    seed=seed,
                    key=f"{name}{seed}",
                    measures={
                        "steps": 2500,
                        **{
                            m: float(series[seed])
                            for m, series in values.items()
                        },
                    },
                )
                for seed in range(len(next(iter(values.values()))))
            ]
            for name, values in methods.items()
        }

    def runs(self, target, experiment, method):
        return self._runs.get(method, [])

    def numbers(self, target, experiment, method, measure):
        return self._numbers.get(method)


def events(*counts, judged=2000):
    return {"events_1000": counts, "judged_1000": [judged] * len(counts)}


def claim(*conditions, **fields):
    return Claim(
        id="c",
        where="Table 1",
        claim="It is so.",
        target="t",
        experiment="e",
        reproduced_if=conditions,
        **fields,
    )


def spikes(method="A", expect="lower", to=("B",), **fields):
    return Condition(
        measure="spike_events",
        methods=[method],
        expect=expect,
        to=() if expect == "occurs" else to,
        **{"margin": 0.3, **fields},
    )


def loss(expect="lower", to=("B",), methods=("A",), **fields):
    return Condition(
        measure="loss", methods=methods, expect=expect, to=to, **fields
    )


def verdict(source, *conditions, **fields):
    (found,) = judge([claim(*conditions, **fields)], source)
    return found


EIGHT_ZEROS = events(*[0] * 8)
EIGHT_ONES = events(*[1] * 8)


@pytest.mark.parametrize(
    ("a", "b", "expect", "expected"),
    [
        (EIGHT_ZEROS, EIGHT_ONES, "lower", REPRODUCED),
        (EIGHT_ZEROS, EIGHT_ONES, "zero", REPRODUCED),
        (EIGHT_ONES, EIGHT_ZEROS, "lower", CONTRADICTED),
        (EIGHT_ZEROS, EIGHT_ONES, "higher", CONTRADICTED),
        (EIGHT_ONES, EIGHT_ZEROS, "higher", REPRODUCED),
        (EIGHT_ZEROS, EIGHT_ZEROS, "lower", NO_DIFFERENCE),
        (EIGHT_ZEROS, EIGHT_ZEROS, "zero", NO_DIFFERENCE),
        (EIGHT_ONES, EIGHT_ONES, "lower", UNDECIDED),
        (events(*[0] * 7), events(*[1] * 7), "lower", UNDECIDED),
        (events(1, *[0] * 7), EIGHT_ONES, "zero", CONTRADICTED),
        (events(0, 1), events(0, 0), "zero", CONTRADICTED),
    ],
)
def test_event_rates(a, b, expect, expected):
    assert verdict(Runs(A=a, B=b), spikes(expect=expect)).verdict == expected


def test_a_spike_refutes_zero_without_any_control():
    found = verdict(Runs(A=events(0, 1)), spikes(expect="zero"))
    assert found.verdict == CONTRADICTED
    assert "A: 1 in 4,000 judged steps (0 / 1)" in found.evidence


def test_a_missing_control_does_not_hide_the_rest():
    found = verdict(Runs(A=EIGHT_ZEROS), spikes(expect="zero"))
    assert found.verdict == UNDECIDED
    assert "A: 0 in 16,000 judged steps" in found.evidence
    assert "no run yet of B" in found.evidence


def test_a_tie_at_zero_is_evidence_only_with_enough_steps():
    few = events(*[0] * 8, judged=1000)
    assert verdict(Runs(A=few, B=few), spikes()).verdict == UNDECIDED
    found = verdict(Runs(A=EIGHT_ZEROS, B=EIGHT_ZEROS), spikes())
    assert "within ±0.3, p 0.00823" in found.evidence


def test_occurrence_takes_one_event_or_its_absence():
    seen = events(*[0] * 7, 1)
    condition = spikes(expect="occurs")
    assert verdict(Runs(A=seen), condition).verdict == REPRODUCED
    assert verdict(Runs(A=EIGHT_ZEROS), condition).verdict == CONTRADICTED
    short = events(*[0] * 8, judged=100)
    assert verdict(Runs(A=short), condition).verdict == UNDECIDED


def losses(*offsets):
    return {"loss": [seed + offset for seed, offset in enumerate(offsets)]}


LOW = losses(-0.2, -0.1, -0.3, -0.2, -0.1, -0.2, -0.1, -0.3)
MIXED = losses(-0.2, 0.1, -0.3, 0.2, -0.1, 0.2, -0.1, 0.3)
SAME = losses(*[0] * 8)


@pytest.mark.parametrize(
    ("a", "condition", "expected"),
    [
        (LOW, loss(), REPRODUCED),
        (LOW, loss("higher"), CONTRADICTED),
        (MIXED, loss(), UNDECIDED),
        (MIXED, loss(margin=0.5), NO_DIFFERENCE),
        (MIXED, loss(margin=0.1), UNDECIDED),
        (MIXED, loss("no worse", margin=0.5), REPRODUCED),
        (MIXED, loss("no worse", margin=0.01), UNDECIDED),
        (LOW, loss("equal", margin=0.5), REPRODUCED),
        (LOW, loss("equal", margin=0.05), CONTRADICTED),
    ],
)
def test_paired_values(a, condition, expected):
    assert verdict(Runs(A=a, B=SAME), condition).verdict == expected


def test_five_seeds_of_one_sign_are_not_enough():
    source = Runs(A=losses(*[-1] * 5), B=losses(*[0] * 5))
    found = verdict(source, loss())
    assert found.verdict == UNDECIDED
    assert "p 0.0312 (5 of 8 seeds, 8 would decide" in found.evidence


def test_an_open_verdict_says_what_the_design_sees():
    found = verdict(Runs(A=MIXED, B=SAME), loss(margin=0.1))
    assert "would decide, these see 0.19" in found.evidence


def test_no_worse_is_decided_by_the_distance_to_the_margin():
    # Mean 0.09, deviation 0.0321: (2.486 * 0.0321 / (0.1 - 0.09))^2 = 63.6.
    near = losses(0.06, 0.12, 0.06, 0.12, 0.06, 0.12, 0.06, 0.12)
    found = verdict(Runs(A=near, B=SAME), loss("no worse", margin=0.1))
    assert found.comparisons[0].seeds_to_decide == 64


def test_only_what_keeps_a_verdict_open_says_what_is_missing():
    settled, small = loss(), loss(to=("C",), margin=0.5)
    open_one = loss(to=("D",), margin=0.02)
    source = Runs(A=LOW, B=SAME, C=LOW, D=losses(*[-0.2] * 8))
    found = verdict(source, settled, small, open_one)
    assert found.verdict == UNDECIDED
    to_b, to_c, to_d = found.evidence.splitlines()
    assert to_b.endswith("lower: p 0.00391")
    assert to_c.endswith("(within ±0.5, p 0.00391)")
    assert "these see 0.07" in to_d
    found = verdict(source, settled, small)
    assert found.verdict == NO_DIFFERENCE
    assert found.evidence.splitlines() == [to_b, to_c]


def test_runs_pair_on_one_processor_alone():
    source = Runs(A=LOW, B=SAME)
    for run in source.runs("t", "e", "B")[:3]:
        run.machine.update(processor="Example 9000", instruction_sets=[])
    (comparison,) = verdict(source, loss()).comparisons
    assert comparison.num_seeds == 5
    for run in source.runs("t", "e", "B"):
        run.machine.update(processor="Example 9000", instruction_sets=[])
    found = verdict(source, loss())
    assert found.verdict == UNDECIDED
    assert "no two runs of one seed, length and processor" in found.evidence


def test_every_comparison_counts():
    source = Runs(A=LOW, B=SAME, C=LOW)
    found = verdict(source, loss(to=("B", "C"), margin=0.5))
    assert found.verdict == NO_DIFFERENCE
    assert verdict(source, loss(to=("B", "C"))).verdict == UNDECIDED
    # Against both: twice the p of 1/256 is still below 0.05.
    high = loss("higher", to=("B", "C"))
    assert verdict(source, high).verdict == CONTRADICTED


def test_a_diverged_run_is_infinitely_high():
    diverged = {"loss": [math.nan] * 8}
    assert verdict(Runs(A=SAME, B=diverged), loss()).verdict == REPRODUCED


def at_most(bound, **fields):
    return Condition(
        measure="m", methods=["A"], expect="at most", bound=bound, **fields
    )


@pytest.mark.parametrize(
    ("source", "condition", "expected"),
    [
        (Runs({"A": [0.9]}), at_most(1), REPRODUCED),
        (Runs({"A": [1.1]}), at_most(1), CONTRADICTED),
        (Runs({"A": [1.1]}), at_most(1, margin=0.2), NO_DIFFERENCE),
        (Runs({"A": [1, 2, 1, 2, 1]}), at_most(2.5), REPRODUCED),
        (Runs({"A": [1, 2, 1, 2, 1]}), at_most(0.5), CONTRADICTED),
        (Runs({"A": [1, 2, 1, 2, 1]}), at_most(1.5), UNDECIDED),
        (Runs(A={"m": [1] * 8}), at_most(1), REPRODUCED),
        (Runs(A={"m": [1, 1, 2]}), at_most(1), CONTRADICTED),
        (Runs(A={"m": [1, 1, 1]}), at_most(1), UNDECIDED),
        (Runs(), at_most(1), UNDECIDED),
    ],
)
def test_bounds(source, condition, expected):
    assert verdict(source, condition).verdict == expected


def test_primary_claims_share_an_error():
    # 8 seeds, one against: p 2/256 alone, above 0.05 among seven of p 1.
    a = losses(0.01, *[-1] * 7)
    alone = verdict(Runs(A=a, B=SAME), loss())
    assert alone.verdict == REPRODUCED
    source = Runs(A=a, B=SAME)
    rules = [loss(), *[loss(to=("C",))] * 7]
    claims = [
        dataclasses.replace(claim(rule, primary=True), id=str(i))
        for i, rule in enumerate(rules)
    ]
    first = judge(claims, source)[0]
    assert first.p_for == pytest.approx(8 * alone.p_for)
    assert first.verdict == UNDECIDED
    assert "after Holm" in first.evidence


def test_controls_stand_beside_the_evidence():
    source = Runs(A=EIGHT_ZEROS, B=EIGHT_ONES, C=EIGHT_ZEROS)
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
