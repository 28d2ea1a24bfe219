# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Planted errors: the independent check finds each."""

import inspect
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from adagc_lab.report.experiment import Experiment
from adagc_lab.reproduce.results import TargetResult, write_results
from adagc_lab.reproduce.targets import summarise_experiment
from adagc_lab.reproduce.verify import runs, verify
from adagc_lab.reproduce.verify.runs import read_runs
from lab.report.conftest import make_directory
from pages import load_tool

command = load_tool("reproduce")


@pytest.fixture
def unread(monkeypatch):
    """Leave the losses out: of the shipped results they take seconds."""
    none = np.zeros(0, int), 0
    monkeypatch.setattr(runs, "spike_steps", lambda loss, window: none)


@pytest.fixture
def folders(tmp_path):
    """Copies of the shipped results and pages."""
    results, docs = tmp_path / "results", tmp_path / "docs"
    shutil.copytree(command.RESULTS, results)
    shutil.copytree(command.DOCS / "results", docs / "results")
    shutil.copytree(command.DOCS / "images", docs / "images")
    shutil.copy(command.DOCS / "results.md", docs)
    for name in ("README.md", "README_cn.md"):
        shutil.copy(command.DOCS.parent / name, tmp_path)
    return results, docs


@pytest.mark.slow
def test_shipped_pages_pass(folders, capsys):
    assert verify(*folders) == 0
    count = int(capsys.readouterr().out.split()[0])
    assert count > 5000


def planted(path, pattern, replacement, count=1):
    text = path.read_text()
    changed = re.sub(pattern, replacement, text, count=count)
    assert changed != text
    path.write_text(changed)


RUNS, CLAIMS = "docs/results/runs.md", "docs/results/claims.md"
PAGE, FIGURE = "docs/results.md", "docs/images/gain-events.svg"
P_VALUE = r"(± [\d.]+) \(p [\d.]+\) \|"
LIMITS = r"(\| \d\.\d\d \(\d\.\d\d)-\d\.\d\d\) \|"
ON_THE_PAGES = [
    (RUNS, r"(\| GlobalGC \|) \d+ /", r"\1 77 /", "GlobalGC, Spikes, window 1"),
    (RUNS, P_VALUE, r"\1 (p 0.0123) |", "of Training loss"),
    (RUNS, LIMITS, r"\1-9.87) |", "per 1,000 judged"),
    (RUNS, r"\| Clippy \|", "| Clipy |", "rows"),
    (RUNS, r"the first 150 not", "the first 200 not", "seeds and steps"),
    (CLAIMS, r"\d+ in ([\d,]+ judged)", r"77 in \1", "judged steps"),
    (CLAIMS, r"(below GlobalGC: p) [\d.]+", r"\1 0.987", "0.987"),
    (CLAIMS, r"(AdaGC minus GlobalGC) \S+", r"\1 -0.8886", "-0.8886"),
    (CLAIMS, r"(?m)^\*\*contra.*", "**reproduced**", "'contradicted'"),
    (PAGE, r"\d+ → (\d+) events", r"987 → \1 events", "987 →"),
    (PAGE, r"\*\*computed", "**reproduced", "communication-v1: label"),
    (FIGURE, r">[\d.]+ \(", ">0.987 (", "drawn"),
    ("README.md", r"\| (\d+) → \d+ \|", r"| \1 → 987 |", "README.md, Llama"),
]
REPORT = "results/report.json"
IN_THE_REPORT = [
    (REPORT, r'"p_equal": 0\.\d+', '"p_equal": 0.0125', "p_equal"),
    (REPORT, r'"verdict": "undecided"', '"verdict": "partly"', "verdict"),
    (REPORT, r'("rows": {\s*"[^"]+": \[\s*)"\w{16}",', r"\1", "runs"),
    (REPORT, r'"num_seeds": \d+', '"num_seeds": 77', "seeds"),
    (REPORT, r'"low": 0\.\d+', '"low": 0.0777', "limits"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("unread")
def test_planted_errors_a_changed_run_and_a_lost_row_are_found(folders, capsys):
    """One run of the check, which takes seconds, finds them all."""
    results, docs = folders
    errors = [*ON_THE_PAGES, *IN_THE_REPORT]
    for file, pattern, replacement, _ in errors:
        planted(results.parent / file, pattern, replacement)
    path = results / "figure-optimizers.jsonl"
    planted(path, r'"validation_loss": ', '"validation_loss": 1')
    path = results / "report.json"
    report = json.loads(path.read_text())
    for table in report["tables"]:
        table["rows"].pop("TensorWiseGC", None)
    path.write_text(json.dumps(report))
    planted(docs / "results/runs.md", r"(?m)^\| TensorWiseGC \|.*\n", "", 0)
    assert verify(results, docs) == 1
    said = capsys.readouterr().out
    assert [named for *_, named in errors if named not in said] == []
    assert "Validation loss" in said
    assert re.search(r"/TensorWiseGC/\d+: in a table", said)


@pytest.fixture
def with_series(tmp_path):
    """Results of runs with their losses, beside clean twins."""

    def record(name, method, **fields):
        run = make_directory(tmp_path / name, steps=1600, **fields)
        run.run["config"] = {"clip": {"name": method}, "name": name}
        return run

    labels, gradient = (
        [{"kind": kind, "tensors": []}]
        for kind in ("constant_labels", "gradient_inf")
    )
    faulty = record("faulty", "adagc")
    faulty.faults.update({1300: labels, 1301: labels, 1400: gradient})
    faulty.metrics["loss"][1302:1330] += np.linspace(3, 0, 28)
    faulty.metrics["loss"][1401] += 20
    experiment = Experiment(
        title="T",
        description="D",
        runs={"AdaGC": [faulty]},
        clean_runs={"AdaGC": [record("clean", "adagc")]},
    )
    results, docs = tmp_path / "results", tmp_path / "docs"
    docs.mkdir()
    found = summarise_experiment(experiment, "e")
    result = TargetResult(target="t", title="T", experiments=[found])
    write_results(results / "t.jsonl", result)
    cell = found.all_runs[0]
    key, spikes = cell.key, cell.measures["spikes_1000"]
    table = {"page": "results.md", "title": "T", "rows": {"AdaGC": [key]}}
    report = {"tables": [table], "figures": [], "verdicts": []}
    (results / "report.json").write_text(json.dumps(report))
    (docs / "results.md").write_text(
        "### T\n\n1 seed (1) of 1,600 steps, the first 200 not judged; spikes "
        "are judged from step 1,200 (window 1,000), from step 400 (window 200)"
        "; processor: x.\n\n|  | Spikes, window 1,000 |\n|---|---:|\n"
        f"| AdaGC | {spikes:.0f} |\n"
    )
    return results, docs


def test_spikes_and_excess_follow_from_the_losses(with_series, capsys):
    assert verify(*with_series) == 0
    count = int(capsys.readouterr().out.split()[0])
    assert count > 20
    (faulty, _) = read_runs(with_series[0])
    assert faulty.measures["spikes_1000"] > 0
    assert faulty.measures["events_above_0.5"] == 2


@pytest.mark.parametrize(
    "measure",
    [
        *("spikes_1000", "events_200", "judged_1000", "excess_area"),
        *("final_loss", "spike_mass"),
    ],
)
def test_a_count_that_the_losses_do_not_give_is_found(
    with_series, capsys, measure
):
    path = with_series[0] / "t.jsonl"
    planted(path, rf'"{measure}": ', f'"{measure}": 7')
    assert verify(*with_series) == 1
    assert measure in capsys.readouterr().out


def test_it_shares_no_code_with_what_it_checks():
    files = [*Path(inspect.getfile(verify)).parent.glob("*.py")]
    text = "".join(file.read_text() for file in files)
    imports = {
        name.removeprefix("adagc_lab.reproduce.").split(".")[0]
        for name in re.findall(r"(?m)^ *(?:from|import) (\S+)", text)
    }
    assert len(files) > 1
    assert imports <= {"verify", "numpy", "scipy", *sys.stdlib_module_names}
