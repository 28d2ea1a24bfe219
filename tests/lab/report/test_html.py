# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The HTML report: right numbers, self-contained, robust, written at once."""

import base64
import html.parser
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from lab.report.conftest import make_experiment

from paddle_adagc.lab.report import html as report_html
from paddle_adagc.lab.report.html import write_report


class Page(html.parser.HTMLParser):
    """Collect the attributes, the text and the table rows of a page."""

    def __init__(self, text):
        super().__init__()
        self.attributes = []
        self.text = []
        self.tables = []
        self.kinds = []
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "table":
            self.tables.append([])
            self.kinds.append(dict(attrs).get("class"))
        if tag == "tr" and self.tables:
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.in_cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.in_cell = False

    def handle_data(self, data):
        self.text.append(data)
        if self.in_cell:
            self.tables[-1][-1][-1] += data.strip()

    def winners(self):
        """``{label: [cell, ..., best]}`` of the first table of who wins."""
        rows = self.tables[self.kinds.index("winners")]
        return {label: cells for label, *cells in rows}

    def comparison(self, number=0):
        """``{group: {label: [cell, ...]}}`` of a comparison table."""
        tables = [
            table
            for kind, table in zip(self.kinds, self.tables, strict=True)
            if kind == "measures"
        ]
        groups, group = {}, None
        for row in tables[number][1:]:
            if len(row) == 1:
                group = groups.setdefault(row[0], {})
            else:
                group[row[0]] = row[1:]
        return groups


def write(tmp_path, *experiments):
    path = write_report(tmp_path / "out" / "report.html", "T", experiments)
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


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


@pytest.mark.usefixtures("unrendered")
def test_numbers_of_one_seed(pair, tmp_path):
    _, page = write(tmp_path, make_experiment(pair))
    table = page.comparison()
    loss = pair["GlobalGC"][0].loss
    jump = loss[250] - np.median(loss[200:250])
    assert table["Damage to the loss"]["… at step"][0] == "250"
    assert table["Damage to the loss"]["Worst loss jump (nat)"][0] == (
        f"{jump:.3f}"
    )
    assert int(table["Spikes, window 100 steps"]["Spikes"][0]) > 0
    assert table["Spikes, window 100 steps"]["Spikes"][1] == "0"
    assert table["Spikes, window 100 steps"]["Spike events"][0] == "1"
    ends = [f"{runs[0].loss[-20:].mean():.4f}" for runs in pair.values()]
    assert table["At the end"]["Training loss (nat)"] == ends
    assert table["At the end"]["Validation loss (nat)"] == ["1.1000"] * 2
    assert table["The run"]["Clip time per step (ms)"] == ["0.50", "1.20"]
    assert table["The run"]["Tensors clipped (%)"] == ["0.0", "50.0"]
    assert table["The run"]["Steps"] == ["400", "400"]
    assert [*table] == [
        "Spikes, window 100 steps",
        "Spikes, window 40 steps",
        "Damage to the loss",
        "At the end",
        "The run",
    ]


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
    text, page = write(tmp_path, make_experiment(runs))
    table, winners = page.comparison(), page.winners()
    events = table["Spikes, window 100 steps"]["Spike events"]
    assert events == ["1 / 1 / 1", "0 / 0 / 0"]
    ends = [run.loss[-20:].mean() for run in runs["AdaGC"]]
    assert table["At the end"]["Training loss (nat)"][1] == (
        f"{np.mean(ends):.4f} ± {np.std(ends, ddof=1):.4f}"
    )
    assert winners["Training loss (nat)"][-1] == "AdaGC, in 2 of 3 seeds"
    assert winners["Spike events, window 100"][:2] == events
    assert "3 seeds (3, 4, 5)" in text
    assert "fewer than 3 seeds" not in text
    data = chart_data(text)
    line = data["experiment-1-curves-0"]["lines"][0]
    series = np.array([run.loss for run in runs["GlobalGC"]])
    for name, reduced in (
        ("values", series.mean(0)),
        ("low", series.min(0)),
        ("high", series.max(0)),
    ):
        np.testing.assert_allclose(line[name], reduced, rtol=1e-4)
    assert 250 in [step for step, _ in line["marks"]]
    assert [chart["label"] for chart in data.values()][:3] == [
        "Training loss (nat)",
        "Tensors clipped (%)",
        "Validation loss (nat)",
    ]


@pytest.mark.slow
def test_faults_and_paired_excess(make_run, tmp_path):
    faults = {
        250 + k: {"kind": "repeated_token", "tensors": []} for k in range(3)
    }
    faults[330] = {
        "kind": "gradient_scale",
        "tensors": ["layers.0.mlp.up_proj.weight"],
    }
    spec = {
        "GlobalGC": {"spikes": {250: 9.0, 331: 0.7}, "faults": faults},
        "AdaGC": {"spikes": {250: 9.0 / 40}, "faults": faults},
    }
    runs = {m: [make_run(method=m, **s)] for m, s in spec.items()}
    clean = {m: [make_run(method=m)] for m in spec}
    text, page = write(tmp_path, make_experiment(runs, clean_runs=clean))
    table = page.comparison()
    excess = table["Excess over the same run without faults"]
    assert excess["Excess events above 0.5 nat"] == ["2", "0"]
    # Step 253 is the first whose batch is clean; 250 to 252 are left out.
    expected = 9.0 * np.exp(-3 / 8)
    largest = float(excess["Largest excess (nat)"][0])
    assert largest == pytest.approx(expected, abs=0.005)
    assert table["Damage to the loss"]["… at step"][0] == "253"
    assert "repeated_token" in text
    assert "of all measures; what counts is the damage" in text


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_diverged_run(make_run, tmp_path):
    runs = {
        "GlobalGC": [
            make_run(method="GlobalGC", nan_from=300, status="diverged")
        ],
        "AdaGC": [make_run(method="AdaGC")],
    }
    _, page = write(tmp_path, make_experiment(runs))
    table = page.comparison()
    assert table["Spikes, window 100 steps"]["Spikes"] == ["5", "0"]
    assert table["Damage to the loss"]["Worst loss jump (nat)"][0] == "∞"
    assert table["Damage to the loss"]["… at step"][0] == "300"
    assert table["At the end"]["Training loss (nat)"][0] == "NaN"
    assert table["At the end"]["Validation loss (nat)"][0] == "∞"
    assert table["The run"]["Steps"] == ["305", "400"]
    assert table["The run"]["Status"] == ["diverged", "finished"]
    winners = page.winners()
    for label in ("Worst loss jump (nat)", "Training loss (nat)"):
        assert winners[label][-1] == "AdaGC"


@pytest.mark.slow
def test_run_without_tensors_has_no_figures_of_tensors(make_run, tmp_path):
    runs = {"AdaGC": [make_run(layers=0)]}
    text, _ = write(tmp_path, make_experiment(runs))
    assert (text.count("<img"), text.count("data-chart=")) == (0, 3)
    runs = {"AdaGC": [make_run(layers=1)]}
    text, _ = write(tmp_path, make_experiment(runs))
    assert (text.count("<img"), text.count("data-chart=")) == (2, 9)


@pytest.mark.slow
def test_loads_nothing(pair, tmp_path):
    text, page = write(tmp_path, make_experiment(pair), make_experiment(pair))
    for _, name, value in page.attributes:
        if name in ("src", "href", "poster", "data", "action"):
            assert value.startswith(("data:", "#")), value[:60]
    assert "default-src 'none'" in text
    own = text.replace("/*! https://github.com/leeoniya/uPlot (v1.6.32) */", "")
    assert not re.search(r"https?://|@import|url\(", own)
    # Pictures follow the colour scheme.
    uris = [v for _, name, v in page.attributes if name == "src"]
    assert len(uris) == 4
    for uri in uris:
        prefix, encoded = uri.split(",", 1)
        assert prefix == "data:image/svg+xml;base64"
        svg = base64.b64decode(encoded).decode()
        ElementTree.fromstring(svg)
        assert "prefers-color-scheme:dark" in svg
        assert "var(--ink)" in svg
        assert svg.count("#ffffff") == svg.count("#24292f") == 1


def chart_data(text):
    start = text.index('id="chart-data">') + len('id="chart-data">')
    return json.loads(text[start : text.index("</script>", start)])


@pytest.mark.usefixtures("unrendered")
def test_validation_of_memorised_data_is_not_shown(make_run, tmp_path):
    run = make_run()
    run.run["config"]["data"] = {"kind": "fixed_sequences"}
    text, page = write(tmp_path, make_experiment({"AdaGC": [run]}))
    assert "Validation loss (nat)" not in page.comparison()["At the end"]
    labels = {chart["label"] for chart in chart_data(text).values()}
    assert "Validation loss (nat)" not in labels


@pytest.mark.usefixtures("unrendered")
def test_the_page_replaces_an_old_one_once_it_is_complete(
    pair, tmp_path, monkeypatch
):
    path = tmp_path / "report.html"
    path.write_text("old")
    seen = []

    def fail(source, _target):
        seen.append(source.read_text(encoding="utf-8"))
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            write_report(path, "T", [make_experiment(pair)])
    assert path.read_text() == "old"
    assert [*tmp_path.glob("*.tmp"), *tmp_path.glob(".*")] == []
    write_report(path, "T", [make_experiment(pair)])
    assert seen == [path.read_text(encoding="utf-8")]
    assert seen[0].rstrip().endswith("</html>")


def test_no_experiments_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="experiments is empty"):
        write_report(tmp_path / "r.html", "T", [])


@pytest.mark.usefixtures("unrendered")
def test_config_versions_and_raw_files(pair, make_run, tmp_path):
    title = "1 < <b>A&B</b>"
    first = make_experiment(pair, title=title, directory=tmp_path)
    calm = {"AdaGC": [make_run(floor=2.0)]}
    text, page = write(tmp_path, first, make_experiment(calm))
    rows = [tuple(row) for table in page.tables for row in table]
    assert ("clip.beta", "–", "0.9") in rows
    assert ("optimizer.beta2", "0.999") in rows
    assert ("paddlepaddle", "3.3.1") in rows
    assert ("num_cores", "2") in rows
    assert "<code>../AdaGC-seed1</code>" in text
    assert str(tmp_path) not in text
    # Without faults nothing is said about them.
    assert "injected fault" not in text.lower()
    assert "Excess over the same run without faults" not in page.comparison()
    # Text is escaped.
    assert "<b>A&B</b>" not in text
    assert "1 &lt; &lt;b&gt;A" in text
    assert title in "".join(page.text)
    # Each experiment has its own numbers.
    ends = page.comparison(1)["At the end"]["Training loss (nat)"]
    assert ends == [f"{calm['AdaGC'][0].loss[-20:].mean():.4f}"]
    assert 'href="#experiment-2"' in text
