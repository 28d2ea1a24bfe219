# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The HTML report: right numbers, charts and facts; it loads nothing."""

import base64
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from adagc_lab.report import html as report_html
from adagc_lab.report.html import write_report
from adagc_lab.report.tables import measure_table
from lab.report.conftest import make_experiment


def write(tmp_path, *experiments):
    path = write_report(tmp_path / "out" / "report.html", "T", experiments)
    return path.read_text(encoding="utf-8")


def chart_data(text):
    start = text.index('id="chart-data">') + len('id="chart-data">')
    return json.loads(text[start : text.index("</script>", start)])


def numbers(*args, **fields):
    """``{group: {label: [cell, ...]}}``, and ``{title: who wins}``."""
    experiment = make_experiment(*args, **fields)
    table = measure_table(experiment)
    cells = {
        group: {row.measure.label: [*row.cells.values()] for row in rows}
        for group, rows in table.groups()
    }
    return cells, {row.measure.title: row.winner for row in table.rows}


@pytest.fixture
def unrendered(monkeypatch):
    """Draw the figures but do not turn them into pictures, which is slow."""
    monkeypatch.setattr(report_html, "svg_data_uri", lambda figure: "data:,")


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


@pytest.mark.usefixtures("unrendered")
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
    assert "fewer than 3 seeds" not in text
    line = chart_data(text)["experiment-1-curves-0"]["lines"][0]
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


@pytest.mark.usefixtures("unrendered")
def test_validation_of_memorised_data_is_not_shown(make_run, tmp_path):
    run = make_run(layers=0)
    run.run["config"]["data"] = {"kind": "fixed_sequences"}
    text = write(tmp_path, make_experiment({"AdaGC": [run]}))
    assert "<td>Validation loss (nat)" not in text
    labels = {chart["label"] for chart in chart_data(text).values()}
    assert labels == {"Training loss (nat)", "Tensors clipped (%)"}
    assert "<img" not in text  # no tensors, no pictures of them


@pytest.mark.slow
def test_loads_nothing(pair, tmp_path):
    text = write(tmp_path, make_experiment(pair), make_experiment(pair))
    uris = re.findall(r'\b(?:src|href|poster|data|action)="([^"]*)"', text)
    assert all(uri.startswith(("data:", "#")) for uri in uris)
    assert "default-src 'none'" in text
    own = text.replace("/*! https://github.com/leeoniya/uPlot (v1.6.32) */", "")
    assert not re.search(r"https?://|@import|url\(", own)
    # Pictures follow the colour scheme.
    pictures = re.findall(r'<img[^>]* src="([^"]*)"', text)
    assert len(pictures) == 4
    for uri in pictures:
        prefix, encoded = uri.split(",", 1)
        assert prefix == "data:image/svg+xml;base64"
        svg = base64.b64decode(encoded).decode()
        ElementTree.fromstring(svg)
        assert "prefers-color-scheme:dark" in svg
        assert "var(--ink)" in svg
        assert svg.count("#ffffff") == svg.count("#24292f") == 1


@pytest.mark.usefixtures("unrendered")
def test_config_versions_and_raw_files(pair, make_run, tmp_path):
    title = "1 < <b>A&B</b>"
    first = make_experiment(pair, title=title, directory=tmp_path)
    calm = {"AdaGC": [make_run(floor=2.0)]}
    text = write(tmp_path, first, make_experiment(calm))
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.S)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", r, re.S) for r in rows]
    found = [tuple(cell.strip() for cell in row) for row in cells]
    for row in (
        ("clip.beta", "–", "0.9"),
        ("optimizer.beta2", "0.999"),
        ("paddlepaddle", "3.3.1"),
        ("num_cores", "2"),
    ):
        assert row in [tuple(re.sub("<.*?>", "", c) for c in r) for r in found]
    assert "<code>../AdaGC-seed1</code>" in text
    assert str(tmp_path) not in text
    assert "injected fault" not in text.lower()  # there is none
    assert "<b>A&B</b>" not in text
    assert "1 &lt; &lt;b&gt;A" in text
    assert f"{calm['AdaGC'][0].loss[-100:].mean():.4f}" in text
    assert 'href="#experiment-2"' in text
