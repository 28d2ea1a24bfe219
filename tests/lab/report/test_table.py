# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tables' numbers, and what pairs."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from adagc_lab.report.judged import model_loss
from adagc_lab.report.table import (
    cell,
    difference_table,
    measure_experiment,
    measure_table,
    seed_gains,
)
from lab.report.made import make_experiment, make_run

BURST = {250 + k: "repeated_token" for k in range(3)}


def table_of(runs, **fields):
    return measure_table(measure_experiment(make_experiment(runs, **fields)))


def test_a_corrupted_batch_s_own_loss_says_nothing():
    run = make_run(steps=8, tensors=False)
    kinds = {3: ["random_tokens"], 4: ["gradient_nan"]}
    kinds[6] = ["gradient_inf", "shuffled_labels"]
    faults = {s: [{"kind": k} for k in found] for s, found in kinds.items()}
    loss = model_loss(dataclasses.replace(run, faults=faults))
    assert np.flatnonzero(np.isnan(loss)).tolist() == [3, 6]


def test_numbers_of_one_seed():
    runs = {
        "GlobalGC": [make_run(method="GlobalGC", spikes={250: 2.0})],
        "AdaGC": [make_run()],
        "lost": [make_run(nan_from=300, status="diverged")],
        "hit": [make_run(spikes={250: 9.0}, faults=BURST)],
        "long": [make_run(steps=1300, tensors=False, spikes={1250: 2.0})],
    }
    runs["AdaGC"][0].run["config"]["data"] = {"kind": "fixed_sequences"}
    loss = runs["GlobalGC"][0].loss
    table = table_of(runs, clean_runs={"hit": [make_run()]})
    assert list(table.columns) == [*runs]
    rise = loss[250] - np.median(loss[200:250])
    # Step 253 is the first whose batch is clean.
    worst = 9.0 * np.exp(-3 / 8)
    for label, cells in {
        "Worst rise (nat)": [f"{rise:.3f}", "0.000", "∞"],
        "Peaks above 0.5 nat": ["1", "0", "1"],
        "Spike score (%)": ["– (too short)"] * 2,
        "Loss at the end (nat)": [f"{loss[-80:].mean():.4f}", ..., "∞"],
        "Validation loss (nat)": ["1.1000", "–"],  # of memorised data
        "Clip time per step (ms)": ["1.20"],
        "Steps": ["400", "400", "305"],
        "Status": ["finished", "finished", "diverged"],
        "Fault peaks above 0.5 nat": ["–", "–", "–", "1"],
    }.items():
        for cell_, wanted in zip(table.loc[label], cells, strict=False):
            assert wanted in (..., cell_), label
    assert float(table.loc["Spike score (%)", "long"]) > 0
    found = table.loc["Worst rise over the clean run (nat)", "hit"]
    assert float(found) == pytest.approx(worst, abs=0.001)


def test_seeds_are_paired():
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
    assert differences.loc["Loss at the end (nat)", "AdaGC"] == "-0.0633"
    gains = seed_gains(measured, "last_loss")["AdaGC"].round(2).to_dict()
    assert gains == {3: -0.1, 4: 0.01, 5: -0.1}
    ends = [run.loss[-80:].mean() for run in runs["AdaGC"]]
    spread = f"{np.mean(ends):.4f} ± {np.std(ends, ddof=1):.4f}"
    table = measure_table(measured)
    assert table.loc["Loss at the end (nat)", "AdaGC"] == spread


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


def test_a_misspelt_tensor_is_named():
    with pytest.raises(ValueError, match=r"dynamics_tensor of run must be"):
        make_experiment({"A": [make_run(steps=5)]}, dynamics_tensor="nrm")
