# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The paper's claims, and verdicts that follow from numbers alone."""

import math
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from paddle_adagc.lab.reproduce.claims import (
    Claim,
    Condition,
    load_claims,
    targets_of,
)
from paddle_adagc.lab.reproduce.grid_file import load_target
from paddle_adagc.lab.reproduce.results import (
    CellResult,
    ExperimentResult,
    TargetResult,
)
from paddle_adagc.lab.reproduce.timing import PLAN, gpu_hours
from paddle_adagc.lab.reproduce.verdicts import (
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    judge,
)

CONFIGS = Path(__file__).parents[3] / "configs"
NO_PAPER_TARGETS = {"quickstart", "figure-adam-beta2", "fp8"}


def results(**values):
    """Results of one experiment: ``method={measure: [per seed]}``."""
    cells = [
        CellResult(
            method=method,
            seed=seed,
            measures={m: series[seed] for m, series in measures.items()},
        )
        for method, measures in values.items()
        for seed in range(len(next(iter(measures.values()))))
    ]
    experiment = ExperimentResult(name="e", title="E", cells=cells)
    return {"t": TargetResult(target="t", title="T", experiments=[experiment])}


def verdict(values, condition, testable_if=None):
    claim = Claim(
        id="c",
        where="Table 1",
        claim="It is so.",
        target="t",
        experiment="e",
        testable_if=[Condition(**testable_if)] if testable_if else [],
        reproduced_if=[Condition(**condition)],
    )
    return judge(claim, results(**values))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"max": 0}, NOT_REPRODUCED),
        ({"max": 1}, REPRODUCED),
        ({"max": 0, "seeds": "most"}, REPRODUCED),
        ({"min": 1, "seeds": "any"}, REPRODUCED),
        ({"min": 1, "seeds": "most"}, NOT_REPRODUCED),
        ({"max": 0.34, "seeds": "mean"}, REPRODUCED),
        ({"max": 0.33, "seeds": "mean"}, NOT_REPRODUCED),
    ],
)
def test_bounds(condition, expected):
    condition = {"measure": "spikes", "methods": ["AdaGC"], **condition}
    found = verdict({"AdaGC": {"spikes": [0, 1, 0]}}, condition)
    assert found.verdict == expected
    assert "0 / 1 / 0" in found.evidence or "average" in found.evidence


def test_differences_take_the_paired_test():
    below = {"measure": "loss", "methods": ["A"], "below": "B"}
    others = {"loss": [2.0, 3.0, 4.0, 5.0, 6.0]}
    lower = verdict(
        {"A": {"loss": [1.9, 2.9, 3.8, 4.9, 5.9]}, "B": others}, below
    )
    assert lower.verdict == REPRODUCED
    assert "p 0.0312" in lower.evidence
    mixed = {"A": {"loss": [1.9, 2.9, 3.8, 4.9, 6.3]}, "B": others}
    assert verdict(mixed, below).verdict == NOT_REPRODUCED
    above = {"measure": "loss", "methods": ["A"], "above": "B"}
    assert verdict(mixed, above).verdict == NOT_REPRODUCED


def test_no_worse_is_below_with_a_margin():
    values = {
        "A": {"loss": [2.02, 3.01, 3.97, 5.02, 6.01]},
        "B": {"loss": [2.0, 3.0, 4.0, 5.0, 6.0]},
    }
    below = {"measure": "loss", "methods": ["A"], "below": "B"}
    assert verdict(values, below).verdict == NOT_REPRODUCED
    found = verdict(values, {**below, "margin": 0.03})
    assert found.verdict == REPRODUCED
    assert "+0.006 ± 0.021 (margin 0.03), p 0.0312" in found.evidence
    assert verdict(values, {**below, "margin": 0.01}).verdict == NOT_REPRODUCED
    above = {"measure": "loss", "methods": ["A"], "above": "B"}
    assert verdict(values, above).verdict == NOT_REPRODUCED
    assert verdict(values, {**above, "margin": 0.04}).verdict == REPRODUCED


def test_what_is_not_the_papers_holds_or_does_not():
    for extension, labels in (
        (False, [REPRODUCED, NOT_REPRODUCED]),
        (True, ["holds", "does not hold"]),
    ):
        for limit, label in zip([1, 0], labels, strict=True):
            condition = Condition(measure="spikes", methods=["A"], max=limit)
            claim = Claim(
                id="c",
                where="Table 1",
                claim="It is so.",
                extension=extension,
                target="t",
                experiment="e",
                reproduced_if=[condition],
            )
            found = judge(claim, results(A={"spikes": [1]}))
            assert found.label == label


def test_too_few_seeds_leave_a_difference_open():
    values = {"A": {"loss": [1.0, 1.0]}, "B": {"loss": [2.0, 3.0]}}
    for side in ("below", "above"):
        condition = {"measure": "loss", "methods": ["A"], side: "B"}
        found = verdict(values, condition)
        assert found.verdict == NOT_TESTABLE
        assert "2 seeds like these cannot give less than 0.25" in found.evidence


def test_seeds_that_do_not_differ_leave_a_difference_open():
    values = {"A": {"n": [0.0] * 5}, "B": {"n": [3.0, 0.0, 5.0, 2.0, 1.0]}}
    below = {"measure": "n", "methods": ["A"], "below": "B"}
    assert verdict(values, below).verdict == NOT_TESTABLE
    values["B"]["n"][1] = 1.0
    assert verdict(values, below).verdict == REPRODUCED


@pytest.mark.parametrize(
    ("condition", "values", "expected"),
    [
        ({"max": 0}, [0, 0], NOT_TESTABLE),
        ({"max": 0}, [0, 1], NOT_REPRODUCED),
        ({"max": 0}, [0, 0, 0], REPRODUCED),
        ({"min": 1, "seeds": "any"}, [0, 1], REPRODUCED),
        ({"min": 1, "seeds": "any"}, [0, 0], NOT_TESTABLE),
        ({"min": 1, "seeds": "most"}, [1, 1], NOT_TESTABLE),
        ({"max": 1, "seeds": "mean"}, [0, 0], NOT_TESTABLE),
        ({"range": 0.1}, [2, 2], NOT_TESTABLE),
    ],
)
def test_bounds_of_runs_take_three_seeds_unless_one_decides(
    condition, values, expected
):
    condition = {"measure": "spikes", "methods": ["A"], **condition}
    measures = {"spikes": values, "steps": [9] * len(values)}
    found = verdict({"A": measures}, condition)
    assert found.verdict == expected
    if expected == NOT_TESTABLE:
        assert "2 of 3 seeds needed" in found.evidence


def test_evidence_says_how_many_steps_were_judged():
    measures = {"spikes_200": [0] * 3, "judged_200": [400, 400, 390]}
    condition = {"measure": "spikes_200", "methods": ["A"], "max": 0}
    found = verdict({"A": measures}, condition)
    assert "0 / 0 / 0 in 400 judged steps" in found.evidence


def test_a_range_with_a_method_that_diverged_does_not_hold():
    values = {"A": {"loss": [2.0]}, "B": {"loss": [math.nan]}}
    for methods in (["A", "B"], ["B", "A"]):
        condition = {"measure": "loss", "methods": methods, "range": 0.1}
        found = verdict(values, condition)
        assert found.verdict == NOT_REPRODUCED
        assert "B diverged" in found.evidence


def test_lowest_and_range():
    values = {
        "A": {"loss": [1.00, 1.10, 1.20, 1.30, 1.40]},
        "B": {"loss": [1.01, 1.11, 1.21, 1.31, 1.41]},
        "C": {"loss": [1.10, 1.00, 1.30, 1.20, 1.50]},
    }
    lowest = {"measure": "loss", "methods": ["A"], "lowest_of": ["B"]}
    assert verdict(values, lowest).verdict == REPRODUCED
    lowest["lowest_of"] = ["B", "C"]
    assert verdict(values, lowest).verdict == NOT_REPRODUCED
    methods = {"measure": "loss", "methods": ["A", "B"]}
    assert verdict(values, {**methods, "range": 0.009}).verdict == REPRODUCED
    assert (
        verdict(values, {**methods, "range": 0.008}).verdict == NOT_REPRODUCED
    )


def test_nothing_to_improve_on_is_not_testable():
    needed = {"measure": "spikes", "methods": ["B"], "min": 1}
    none = {"measure": "spikes", "methods": ["A"], "max": 0}
    calm = {"A": {"spikes": [0, 0]}, "B": {"spikes": [1, 0]}}
    found = verdict(calm, none, needed)
    assert found.verdict == NOT_TESTABLE
    assert "spikes of B 1 / 0" in found.evidence
    assert "spikes of A 0 / 0" in found.evidence
    wild = {"A": {"spikes": [0, 0]}, "B": {"spikes": [1, 2]}}
    assert verdict(wild, none, needed).verdict == REPRODUCED


def test_what_was_not_measured_is_not_testable():
    none = {"measure": "spikes", "methods": ["A"], "max": 0}
    assert verdict({"B": {"spikes": [0]}}, none).verdict == NOT_TESTABLE
    assert verdict({"A": {"loss": [0]}}, none).verdict == NOT_TESTABLE
    claim = Claim(id="c", where="", claim="", not_testable="Too large.")
    assert judge(claim, {}).verdict == NOT_TESTABLE
    assert judge(claim, {}).evidence == "Too large."


@pytest.mark.slow
def test_shipped_claims_name_what_the_grids_have():
    claims = load_claims(CONFIGS / "claims.yaml")
    grids = {p.stem: p for p in (CONFIGS / "experiments").glob("*.yaml")}
    assert set(targets_of(claims)) == set(grids) - NO_PAPER_TARGETS
    plan = gpu_hours()
    for claim in claims:
        if claim.target is None:
            continue
        target = load_target(grids[claim.target])
        methods = {e.name: set(e.all_methods) for e in target.experiments}
        timed = {"GlobalGC", "AdaGC", "no clip"}
        methods |= {timing.name: timed for timing in target.timings}
        methods[PLAN] = set(plan.methods)
        for condition in (*claim.testable_if, *claim.reproduced_if):
            named = {*condition.methods, *(condition.lowest_of or [])}
            named |= {condition.below, condition.above} - {None}
            experiment = condition.experiment or claim.experiment
            assert named <= methods[experiment], claim.id
            if experiment == PLAN:
                assert condition.measure in plan.cells[0].measures


def test_every_paper_target_has_the_control_beside_adagc():
    control = {"clip": {"name": "global_norm", "lambda_abs": 0.1}}
    for name in ("table-spike-score", "ablation-locality", "ablation-init"):
        target = load_target(CONFIGS / "experiments" / f"{name}.yaml")
        (experiment,) = (
            e for e in target.experiments if e.name == "llama-low-noise"
        )
        assert experiment.methods["GlobalGC 0.1"] == control


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({}, "either a target or not_testable"),
        ({"target": "t"}, "reproduced_if go together"),
        ({"target": "t", "experment": "e"}, "did you mean 'experiment'"),
        (
            {
                "target": "t",
                "reproduced_if": [{"measure": "m", "methods": ["A"]}],
            },
            "needs one of min/max",
        ),
        (
            {
                "target": "t",
                "reproduced_if": [{"measure": "m", "methods": ["A"], "max": 0}],
            },
            "names no experiment",
        ),
        (
            {
                "target": "t",
                "experiment": "e",
                "reproduced_if": [
                    {"measure": "m", "methods": ["A"], "below": "B", "p": 2}
                ],
            },
            "p=2",
        ),
        (
            {
                "target": "t",
                "experiment": "e",
                "reproduced_if": [
                    {"measure": "m", "methods": ["A"], "max": 0, "margin": 1}
                ],
            },
            "margin=1.0 goes with below and above",
        ),
    ],
)
def test_bad_claims_are_named(tmp_path, claim, message):
    path = tmp_path / "claims.yaml"
    full = {"id": "c", "where": "w", "claim": "s", **claim}
    OmegaConf.save(OmegaConf.create({"claims": [full]}), path)
    with pytest.raises(ValueError, match=message):
        load_claims(path)
