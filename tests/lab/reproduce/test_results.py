# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers of runs, as the results keep them."""

import math

import pytest
from lab.report.conftest import Spec, make_directory

from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.reproduce.results import (
    TargetResult,
    decode_losses,
    read_results,
    write_results,
)
from paddle_adagc.lab.reproduce.targets import summarise_experiment


@pytest.fixture
def summarise(tmp_path):
    def make(config=None, **fields):
        record = make_directory(tmp_path / "run", Spec(**fields))
        record.run["config"] = config or {}
        experiment = Experiment(
            title="T", description="D", runs={"AdaGC": [record]}, skip_steps=20
        )
        result = summarise_experiment(experiment, "e")
        path = write_results(
            tmp_path / "t.jsonl",
            TargetResult(target="t", title="T", experiments=[result]),
        )
        (read,) = read_results(path).experiments
        return read.cells[0]

    return make


def test_steps_that_were_judged(summarise):
    measures = summarise(steps=400).measures
    assert measures["judged_200"] == 180
    assert measures["spikes_200"] == 0
    assert "spikes_1000" not in measures


@pytest.mark.parametrize("nan_from", [5, 150, 300])
def test_a_run_that_diverged_has_a_spike_and_the_worst_loss(
    summarise, nan_from
):
    measures = summarise(
        config={"data": {"kind": "shapes"}},
        nan_from=nan_from,
        status="diverged",
    ).measures
    assert measures["spikes_1000"] >= 1
    assert measures["events_1000"] >= 1
    assert measures["judged_1000"] >= 1
    assert measures["spikes_200"] >= 1
    assert measures["validation_loss"] == math.inf
    assert measures["retrieval_accuracy"] == -math.inf
    assert math.isnan(measures["final_loss"])
    assert measures["diverged"] == 1


def test_fixed_sequences_have_no_validation_loss(summarise):
    measures = summarise(
        config={"data": {"kind": "fixed_sequences"}},
        nan_from=300,
        status="diverged",
    ).measures
    assert "validation_loss" not in measures
    assert "retrieval_accuracy" not in measures


def test_a_line_holds_its_losses_and_where_they_come_from(summarise):
    cell = summarise(steps=400)
    losses = decode_losses(cell.series["loss"])
    assert len(losses) == 400
    assert losses[-100:].mean() == pytest.approx(
        cell.measures["final_loss"], rel=1e-6
    )
    assert cell.series["faults"] == cell.series["left_out"] == []
    assert cell.machine == {"num_cores": 2}
    assert cell.cpu_model == "recorded before"
