# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The file of claims: what it names, and how its mistakes are named."""

from pathlib import Path

import pytest
from adagc_lab.reproduce.claims import (
    NUM_PRIMARY,
    load_claims,
    targets_of,
)
from adagc_lab.reproduce.grid import load_target
from adagc_lab.reproduce.pool import Catalogue
from adagc_lab.reproduce.prediction import WRONG
from adagc_lab.reproduce.results import SPIKE_EVENTS
from adagc_lab.reproduce.statistics import MIN_SEEDS
from adagc_lab.reproduce.timing import PLAN, gpu_hours
from omegaconf import OmegaConf

CONFIGS = Path(__file__).parents[3] / "configs"
GRIDS = {p.stem: p for p in (CONFIGS / "experiments").glob("*.yaml")}
TARGETS = {name: load_target(path) for name, path in GRIDS.items()}
NO_PAPER_TARGETS = {
    *("quickstart", "fp8", "extension-warm-up-faults"),
    "extension-low-threshold",
}


@pytest.mark.slow
def test_shipped_claims_name_what_the_grids_have():
    claims, labels, _ = load_claims(CONFIGS / "claims.yaml")
    assert set(targets_of(claims)) == set(GRIDS) - NO_PAPER_TARGETS
    catalogue = Catalogue(GRIDS)
    assert all(tuple(key.split("/")) in catalogue for key in labels)
    timed = {t.name for target in TARGETS.values() for t in target.timings}
    plan = gpu_hours()
    for claim in claims:
        for condition in claim.conditions:
            methods, experiment = {*condition.methods}, condition.experiment
            if experiment == PLAN:
                assert methods <= {*plan.methods}
                assert condition.measure in plan.all_runs[0].measures
                continue
            if condition.measure == WRONG:
                continue
            if experiment in timed:
                assert methods <= {"GlobalGC", "AdaGC"}
                continue
            if (condition.measure, experiment) == (
                SPIKE_EVENTS,
                claim.experiment,
            ):
                methods |= {*claim.controls}
            place = condition.to_experiment or experiment
            for name, named in ((experiment, methods), (place, condition.to)):
                known = catalogue.methods(condition.target, name)
                assert {*named} <= {*known}, claim.id


def test_every_experiment_of_a_claim_has_the_seeds_of_a_verdict():
    for claim in load_claims(CONFIGS / "claims.yaml").claims:
        for condition in claim.conditions:
            for experiment in TARGETS[condition.target].experiments:
                if experiment.name == condition.experiment:
                    assert len(experiment.seeds) >= MIN_SEEDS


def test_arms_are_the_same_whoever_asks():
    catalogue = Catalogue(GRIDS)
    first = catalogue.method("table-spike-score", "llama-low-noise", "AdaGC")
    for target, experiment, method in (
        ("ablation-locality", "llama-low-noise", "AdaGC"),
        ("figure-loss-spikes", "beta2-0.999", "AdaGC"),
        ("table-other-methods", "llama-low-noise", "AdaGC"),
    ):
        assert catalogue.method(target, experiment, method).takes(first)
    other = catalogue.method("figure-loss-spikes", "beta2-0.95", "AdaGC")
    assert not other.takes(first)
    with pytest.raises(ValueError, match="did you mean 'AdaGC'"):
        catalogue.method("table-spike-score", "llama-low-noise", "AdaCG")
    with pytest.raises(ValueError, match="no experiment 'lama-low-noise'"):
        catalogue.method("table-spike-score", "lama-low-noise", "AdaGC")


def test_alike_experiments_are_one_setting():
    settings = Catalogue(GRIDS).joined(["table-spike-score", "ablation-init"])
    (llama,) = (s for s in settings if s.first.name == "llama-low-noise")
    assert {"GlobalGC", "AdaGC", "SPAM"} - {*llama.methods} == {"SPAM"}
    assert {"Clippy", "no warm-up"} <= {*llama.methods}
    first, second = (
        s.methods["GlobalGC"]
        for s in settings
        if s.first.name.startswith("ernie-moe-faults")
    )
    assert not first.takes(second)


CONDITION = {"measure": "final_loss", "expect": "lower"}
CONDITION |= {"methods": ["A"], "to": ["B"]}


def ruled(**changes):
    """A claim with a condition that is changed."""
    condition = {**CONDITION, **changes}
    return {"target": "t", "experiment": "e", "reproduced_if": [condition]}


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({}, "claim 'c': .*either a target or not_testable"),
        ({"target": "t"}, "reproduced_if go together"),
        ({"target": "t", "experment": "e"}, "did you mean 'experiment'"),
        ({"target": "t", "reproduced_if": [CONDITION]}, "names no experiment"),
        ({"not_testable": "Too large."}, f"expected {NUM_PRIMARY}"),
        (ruled(expect="lowest"), "expect must be one of lower, higher"),
        (ruled(to=[]), "needs methods in `to`"),
        (ruled(bound=1.0), "`at most` goes with a bound"),
        (ruled(expect="zero"), "is about spike_events, not final_loss"),
        (ruled(methods=[]), "methods must not be empty"),
        (ruled(margin=0), "margin must be greater than 0"),
        (ruled(mesure="m"), r"did you mean 'reproduced_if\.0\.measure'"),
        (ruled(measure="final_los"), "did you mean 'final_loss'"),
        (ruled(measure="spike_events", expect="occurs"), "takes no `to`"),
        ("spikes", r"claims\.0 must be a map .* got 'spikes'"),
    ],
)
def test_bad_claims_are_named(tmp_path, claim, message):
    if claim != "spikes":
        claim = {"id": "c", "where": "w", "claim": "s", **claim}
    path = tmp_path / "claims.yaml"
    OmegaConf.save(OmegaConf.create({"margins": {}, "claims": [claim]}), path)
    with pytest.raises(ValueError, match=message):
        load_claims(path)
