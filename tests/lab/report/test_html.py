# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The HTML report: right numbers, charts and facts; it loads nothing."""

import json

import numpy as np
import pytest
from adagc_lab.report.html import write_report
from adagc_lab.report.tables import measure_table
from lab.report.conftest import make_experiment


def write(tmp_path, *experiments):
    path = write_report(tmp_path / "out" / "report.html", "T", experiments)
    return path.read_text(encoding="utf-8")


def page_data(text):
    """What the page's script shows."""
    start = text.index('id="data">') + len('id="data">')
    return json.loads(text[start : text.index("</script>", start)])


def numbers(*args, **fields):
    """``{group: {label: [cell, ...]}}``, and ``{title: who wins}``."""
    experiment = make_experiment(*args, **fields)
    table = measure_table(experiment)
    cells = {row.measure.group: {} for row in table.rows}
    for row in table.rows:
        cells[row.measure.group][row.measure.label] = [*row.cells.values()]
    return cells, {row.measure.title: row.winner for row in table.rows}


@pytest.fixture
def pair(make_run):
    """One seed: GlobalGC with a spike, AdaGC without."""
    return {
        "GlobalGC": [
            make_run(method="GlobalGC", spikes={250: 2.0}, outliers=(250,))
        ],
        "AdaGC": [make_run(method="AdaGC", outliers=(250,))],
    }


def test_numbers_of_one_seed(pair):
    table, _ = numbers(pair)
    loss = pair["GlobalGC"][0].loss
    jump = f"{loss[250] - np.median(loss[200:250]):.3f}"
    damage, spikes = table["Damage to the loss"], "Spikes, window 100 steps"
    assert damage["… at step"][0] == "250"
    assert damage["Worst loss jump (nat)"][0] == jump
    assert int(table[spikes]["Spikes"][0]) > 0
    assert table[spikes]["Spikes"][1] == "0"
    assert table[spikes]["Spike events"][0] == "1"
    ends = [f"{runs[0].loss[-100:].mean():.4f}" for runs in pair.values()]
    assert table["At the end"]["Training loss (nat)"] == ends
    assert table["At the end"]["Validation loss (nat)"] == ["1.1000"] * 2
    assert table["The run"]["Clip time per step (ms)"] == ["0.50", "1.20"]
    assert table["The run"]["Tensors clipped (%)"] == ["0.0", "50.0"]
    assert "Excess over the same run without faults" not in table


def test_several_seeds(make_run, tmp_path):
    seeds = (3, 4, 5)
    runs = {
        "GlobalGC": [
            make_run(method="GlobalGC", seed=seed, spikes={250: 2.0})
            for seed in seeds
        ],
        "AdaGC": [
            make_run(seed=seed, floor=floor)
            for seed, floor in zip(seeds, (0.9, 1.01, 0.9), strict=True)
        ],
    }
    table, winners = numbers(runs)
    events = table["Spikes, window 100 steps"]["Spike events"]
    assert events == ["1 / 1 / 1", "0 / 0 / 0"]
    ends = [run.loss[-100:].mean() for run in runs["AdaGC"]]
    assert table["At the end"]["Training loss (nat)"][1] == (
        f"{np.mean(ends):.4f} ± {np.std(ends, ddof=1):.4f}"
    )
    assert winners["Training loss (nat)"] == "AdaGC, in 2 of 3 seeds"
    text = write(tmp_path, make_experiment(runs))
    assert "AdaGC, in 2 of 3 seeds" in text
    assert "3 seeds (3, 4, 5)" in text
    line = page_data(text)["sections"][0]["curves"][0]["lines"][0]
    assert 250 in [step for step, _ in line["marks"]]


def test_faults_and_paired_excess(make_run):
    faults = {
        250 + k: {"kind": "repeated_token", "tensors": []} for k in range(3)
    }
    faults[330] = {"kind": "gradient_scale", "tensors": []}
    spec = {
        "GlobalGC": {"spikes": {250: 9.0, 331: 0.7}, "faults": faults},
        "AdaGC": {"spikes": {250: 9.0 / 40}, "faults": faults},
    }
    runs = {m: [make_run(method=m, **s)] for m, s in spec.items()}
    clean = {m: [make_run(method=m)] for m in spec}
    table, _ = numbers(runs, clean_runs=clean)
    excess = table["Excess over the same run without faults"]
    assert excess["Excess events above 0.5 nat"] == ["2", "0"]
    # Step 253 is the first whose batch is clean; 250 to 252 are left out.
    expected = 9.0 * np.exp(-3 / 8)
    largest = float(excess["Largest excess (nat)"][0])
    assert largest == pytest.approx(expected, abs=0.005)
    assert table["Damage to the loss"]["… at step"][0] == "253"


def test_diverged_run(make_run):
    runs = {
        "GlobalGC": [
            make_run(method="GlobalGC", nan_from=300, status="diverged")
        ],
        "AdaGC": [make_run(method="AdaGC")],
    }
    table, winners = numbers(runs)
    assert table["Spikes, window 100 steps"]["Spikes"] == ["5", "0"]
    assert table["Damage to the loss"]["Worst loss jump (nat)"][0] == "∞"
    assert table["Damage to the loss"]["… at step"][0] == "300"
    assert table["At the end"]["Training loss (nat)"][0] == "NaN"
    assert table["At the end"]["Validation loss (nat)"][0] == "∞"
    assert table["The run"]["Steps"] == ["305", "400"]
    assert table["The run"]["Status"] == ["diverged", "finished"]
    for label in ("Worst loss jump (nat)", "Training loss (nat)"):
        assert winners[label] == "AdaGC"


def test_validation_of_memorised_data_is_not_shown(make_run, tmp_path):
    run = make_run(layers=0)
    run.run["config"]["data"] = {"kind": "fixed_sequences"}
    text = write(tmp_path, make_experiment({"AdaGC": [run]}))
    (section,) = page_data(text)["sections"]
    labels = {chart["label"] for chart in section["curves"]}
    assert labels == {"Training loss (nat)", "Tensors clipped (%)"}
    assert section["norms"] == section["moments"] == []
    assert section["heat"] == {}


def test_config_versions_and_raw_files(pair, make_run, tmp_path):
    title = "1 < <b>A&B</b>"
    first = make_experiment(pair, title=title, directory=tmp_path)
    calm = {"AdaGC": [make_run(floor=2.0)]}
    text = write(tmp_path, first, make_experiment(calm))
    section, other = page_data(text)["sections"]
    assert section["different"]["clip.beta"] == ["–", "0.9"]
    assert section["common"]["optimizer.beta2"] == "0.999"
    assert section["facts"]["paddlepaddle"] == "3.3.1"
    assert section["facts"]["num_cores"] == "2"
    assert "../AdaGC-seed1" in section["paths"]
    assert str(tmp_path) not in text
    assert not section["has_faults"]
    assert "<b>A&B</b>" not in text
    assert section["title"] == title
    assert f"{calm['AdaGC'][0].loss[-100:].mean():.4f}" in text
    assert other["anchor"] == "experiment-2"
