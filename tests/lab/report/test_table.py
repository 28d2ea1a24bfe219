# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Judged steps, the tables' numbers, what pairs."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from adagc_lab.report.judged import judged_steps
from adagc_lab.report.table import (
    cell,
    difference_table,
    measure_experiment,
    measure_table,
)
from lab.report.conftest import make_experiment

BURST = {250 + k: "repeated_token" for k in range(3)}


def table_of(runs, **fields):
    return measure_table(measure_experiment(make_experiment(runs, **fields)))


def test_judged_steps_leave_out_corrupted_losses_only(make_run):
    run = make_run(steps=8, tensors=False)
    kinds = {
        3: ["random_tokens"],
        4: ["gradient_nan"],
        5: ["activation_scale"],
        6: ["gradient_inf", "shuffled_labels"],
    }
    faults = {s: [{"kind": k} for k in found] for s, found in kinds.items()}
    run = dataclasses.replace(run, faults=faults)
    assert judged_steps(run, 1).tolist() == [1, 2, 4, 7]


def test_numbers_of_one_seed(make_run):
    runs = {
        "GlobalGC": [make_run(method="GlobalGC", spikes={250: 2.0})],
        "AdaGC": [make_run()],
    }
    loss = runs["GlobalGC"][0].loss
    table = table_of(runs)
    assert list(table.columns) == ["GlobalGC", "AdaGC"]
    rise = loss[250] - np.median(loss[200:250])
    assert table.loc["Worst rise (nat)"].tolist() == [f"{rise:.3f}", "0.000"]
    assert table.loc["Peaks above 0.5 nat"].tolist() == ["1", "0"]
    assert float(table.loc["Spike score (%)", "GlobalGC"]) > 0
    assert table.loc["Spike score (%)", "AdaGC"] == "0.000"
    end = f"{loss[-80:].mean():.4f}"
    assert table.loc["Training loss at the end (nat)", "GlobalGC"] == end
    assert table.loc["Validation loss (nat)"].tolist() == ["1.1000"] * 2
    assert table.loc["Clip time per step (ms)", "AdaGC"] == "1.20"
    assert "Damage over the clean run (nat)" not in table.index


def test_a_run_that_diverged_is_infinitely_bad(make_run):
    bad = make_run(method="GlobalGC", nan_from=300, status="diverged")
    table = table_of({"GlobalGC": [bad], "AdaGC": [make_run()]})
    for label in ("Worst rise (nat)", "Training loss at the end (nat)"):
        assert table.loc[label, "GlobalGC"] == "∞"
    assert table.loc["Steps"].tolist() == ["305", "400"]
    assert table.loc["Status"].tolist() == ["diverged", "finished"]


def test_faults_are_compared_with_the_run_without_them(make_run):
    faulty = make_run(spikes={250: 9.0}, faults=BURST)
    table = table_of({"AdaGC": [faulty]}, clean_runs={"AdaGC": [make_run()]})
    assert table.loc["Fault peaks above 0.5 nat", "AdaGC"] == "1"
    # Step 253 is the first whose batch is clean.
    worst = float(table.loc["Worst rise over the clean run (nat)", "AdaGC"])
    assert worst == pytest.approx(9.0 * np.exp(-3 / 8), abs=0.001)


def test_seeds_are_paired(make_run):
    floors = (0.9, 1.01, 0.9)
    runs = {
        "GlobalGC": [make_run(method="GlobalGC", seed=s) for s in (3, 4, 5)],
        "AdaGC": [
            make_run(seed=s, floor=floor)
            for s, floor in zip((3, 4, 5), floors, strict=True)
        ],
    }
    measured = measure_experiment(make_experiment(runs))
    differences = difference_table(measured)
    assert list(differences.columns) == ["AdaGC"]
    text = differences.loc["Training loss at the end (nat)", "AdaGC"]
    assert text.startswith("-0.0633 (")
    ends = [run.loss[-80:].mean() for run in runs["AdaGC"]]
    spread = f"{np.mean(ends):.4f} ± {np.std(ends, ddof=1):.4f}"
    table = measure_table(measured)
    assert table.loc["Training loss at the end (nat)", "AdaGC"] == spread


def test_validation_of_memorised_data_is_not_shown(make_run):
    run = make_run()
    run.run["config"]["data"] = {"kind": "fixed_sequences"}
    assert "Validation loss (nat)" not in table_of({"AdaGC": [run]}).index


@pytest.mark.parametrize(
    ("values", "digits", "text"),
    [
        ([9, 8, 1200], 0, "9 / 8 / 1,200"),
        ([400, 400], 0, "400"),
        ([1.0, 2.0, 3.0], 2, "2.00 ± 1.00"),
        ([1.0, math.nan, math.inf], 1, "1.0 / – / ∞"),
        ([None, None], 2, "–"),
    ],
)
def test_values_of_several_seeds(values, digits, text):
    assert cell(pd.Series(values), digits) == text


def test_a_misspelt_tensor_is_named(make_run):
    with pytest.raises(ValueError, match=r"dynamics_tensor of run-0 must be"):
        make_experiment({"A": [make_run(steps=5)]}, dynamics_tensor="nrm")
