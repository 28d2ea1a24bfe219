# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Planted errors: the independent check finds each."""

import dataclasses
import inspect
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from adagc_lab.report.experiment import Experiment, flatten
from adagc_lab.reproduce import recount
from adagc_lab.reproduce.grid import as_json
from adagc_lab.reproduce.packed import encode_losses
from adagc_lab.reproduce.pool import Catalogue, PooledResults
from adagc_lab.reproduce.prediction import wrong_percent
from adagc_lab.reproduce.recount import Runs
from adagc_lab.reproduce.results import TargetResult, write_results
from adagc_lab.reproduce.targets import summarise_experiment
from adagc_lab.reproduce.verdicts import judge
from adagc_lab.reproduce.verify import Comparison, compare, same, verify
from lab.report.conftest import make_directory
from lab.reproduce.conftest import cell, make_claim, planned, result, rule
from pages import load_tool

command = load_tool("reproduce")


@pytest.fixture
def unread(monkeypatch):
    """Leave the losses out: of the shipped results they take seconds."""
    none = np.zeros(0, int), 0
    monkeypatch.setattr(recount, "spike_steps", lambda loss, window: none)


@pytest.fixture
def folders(tmp_path):
    """Copies of the shipped results and pages."""
    results, docs = tmp_path / "results", tmp_path / "docs"
    shutil.copytree(command.RESULTS, results)
    shutil.copytree(command.DOCS / "results", docs / "results")
    shutil.copy(command.DOCS / "results.md", docs)
    for name in ("README.md", "README_cn.md"):
        shutil.copy(command.DOCS.parent / name, tmp_path)
    return results, docs


@pytest.mark.slow
def test_shipped_pages_pass(folders, capsys):
    assert verify(*folders) == 0
    count = int(capsys.readouterr().out.split()[0])
    assert count > 20_000


def planted(path, pattern, replacement, count=1):
    text = path.read_text()
    changed = re.sub(pattern, replacement, text, count=count)
    assert changed != text
    path.write_text(changed)


ROWS, CLAIMS = "docs/results/comparisons.md", "docs/results/claims.md"
PAGE, REPORT = "docs/results.md", "results/report.json"
PLANTED = [
    (ROWS, r"\d+ → (\d+) \|", r"987 → \1 |", "line"),
    (CLAIMS, r"(?m)^\*\*contra.*", "**reproduced**", "'contradicted'"),
    (CLAIMS, r"; second minus 0.5 × first: [^;]*", "", ": row"),
    (PAGE, r"\*\*computed", "**reproduced", "results.md, memory: verdict"),
    (PAGE, r"(#spikes-qwen3\) \| \*\*)re", r"\1", "spikes-qwen3: row"),
    (CLAIMS, r"(?m)^\| \[.*#memory\).*", "", "claims.md, memory: row"),
    ("README.md", r"(\| \d+ → )\d+ \|", r"\g<1>987 |", "README.md: | Llama"),
    *[
        (REPORT, rf'"{name}": [\d.e-]+', f'"{name}": 0.0125', f", {name}: ")
        for name in ("p_for", "p_against", "p_equal", "p_fewer", "p_alike")
    ],
    (REPORT, r'"num_seeds": \d+', '"num_seeds": 987', ", num_seeds: "),
    (REPORT, r'"is_blind": true', '"is_blind": 7', ", is_blind: "),
    (REPORT, r'"is_blind": t', r'"is_no_fewer": true, \g<0>', ", is_no_fewer"),
    (REPORT, r'"number": "\d+', '"number": "987', "number: stands '987"),
    (REPORT, r'("other_keys": \[\s*)"\w[^"]+",', r"\1", "other_keys, 0"),
    (REPORT, r'"verdict": "no difference"', '"verdict": "partly"', "verdict"),
    (REPORT, r'("rows": {\s*"[^"]+": \[\s*)"\w{16}",', r"\1", "runs"),
    # A verdict that a later rule changes, and that does not say so.
    (CLAIMS, r"made after the runs, would say", "would say", "that it flips"),
    (REPORT, r'"other_pairs": "partly"', '"other_pairs": "x"', "other_pairs"),
    # A gain without its price; zeros in both arms without their masses.
    (PAGE, r"(→ \d+ events.*); end \S+ nat, p \S+ \|", r"\1 |", "ernie: row"),
    # The price of one length alone.
    (PAGE, r"; end \S+ nat at 2,500 steps[^;]*;", ";", "llama: row"),
    (
        PAGE,
        r"(?m)(Spike mass \| Spike events.*)\| Loss at.*",
        r"\1|",
        "a price",
    ),
    (CLAIMS, r"(\| .*0 → 0 events)[^|]*\|", r"\1 |", ": mass"),
    (PAGE, r"CLIP with Lion \(\+0", "CLIP with Lion (+9", "in the answer"),
    # A row in the wrong list of the answer.
    (PAGE, r"; more on ERNIE \(\+9", "; less on ERNIE (+9", ": less on"),
    # An experiment with faults that is not shown.
    (PAGE, r"(?m)^\| Mixtral, its recipe \|.*\n", "", "| Mixtral, its recipe"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("unread")
def test_planted_errors_a_changed_run_and_a_lost_row_are_found(folders, capsys):
    """One run of the check, which takes seconds, finds them all."""
    results, docs = folders
    for file, pattern, replacement, _ in PLANTED:
        planted(results.parent / file, pattern, replacement)
    path = results / "figure-optimizers.jsonl"
    planted(path, r'"validation_loss": ', '"validation_loss": 1')
    path = results / "report.json"
    report = json.loads(path.read_text())
    for table in report["tables"]:
        table["rows"].pop("TensorWiseGC", None)
    report["rows"] = [
        row for row in report["rows"] if row["line"][0] != "Qwen3-1.7B, calm"
    ]
    path.write_text(json.dumps(report))
    assert verify(results, docs) == 1
    said = capsys.readouterr().out
    assert [named for *_, named in PLANTED if named not in said] == []
    assert re.search(r"AdaGC/\d+ beside \S+, \d+ steps: stands False", said)
    assert "muon-quality" in said
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
    rows = {"AdaGC": [found.all_runs[0].key]}
    table = {"page": "results.md", "title": "T", "rows": rows}
    report = {"tables": [table], "rows": [], "verdicts": []}
    (results / "report.json").write_text(json.dumps(report))
    (docs / "results.md").write_text("### T\n\n|  |\n|---|\n| AdaGC |\n")
    return results, docs


def test_spikes_and_excess_follow_from_the_losses(with_series, capsys):
    assert verify(*with_series) == 0
    count = int(capsys.readouterr().out.split()[0])
    assert count > 20
    (faulty, _) = Runs(with_series[0]).lines
    assert faulty.measures["spikes_1000"] > 0
    assert faulty.measures["events_above_0.5"] == 2


@pytest.mark.parametrize(
    "measure",
    [
        *("spikes_1000", "events_200", "judged_1000", "excess_area"),
        *("excess_worst", "events_above_0.2", "score_200"),
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


@pytest.mark.parametrize(
    ("replayed", "adagc", "wrong"),
    [
        ([89] * 8, [1.0] * 8, [0] * 8),
        ([89] * 8, [3.0] * 7 + [1.0], [100] * 7 + [0]),
        ([90] * 8, [3.0] * 7 + [1.0], [0] * 7 + [100]),
        ([], [1.0], []),  # no norms were recorded
    ],
)
def test_who_is_helped_is_recomputed(tmp_path, capsys, replayed, adagc, wrong):
    def run(seed, name, loss, measures=()):
        config = {"clip.name": name, "faults": [], "train.max_steps": 400}
        made = cell(f"{name}{seed}", name, seed, config=config, final_loss=loss)
        series = {"loss": encode_losses(np.full(400, loss))}
        series |= {"faults": [], "left_out": []}
        made.measures.update(measures)
        return dataclasses.replace(made, series=series)

    shares = [{"replayed_percent": float(x)} for x in replayed] or [{}]
    found = result(
        *[run(i, "adagc", loss) for i, loss in enumerate(adagc)],
        *[run(i, "global_norm", 2.0, x) for i, x in enumerate(shares)],
    )
    write_results(tmp_path / "t.jsonl", found)
    runs = found.experiments[0].all_runs
    own = wrong_percent((json.dumps(run.config), run) for run in runs)
    assert own == recount.wrong_percent(Runs(tmp_path)) == wrong
    source = PooledResults(Catalogue({}), {"t": found})
    at_most = rule("at most", "wrong_percent", (), bound=20)
    (verdict,) = judge([make_claim(at_most, extension=True)], source)
    label = "holds" if verdict.verdict == "reproduced" else verdict.label
    (tmp_path / "docs/results").mkdir(parents=True)
    page = tmp_path / "docs/results/claims.md"
    page.write_text(f"\n### c\n\n**{label}**\n")
    report = {"tables": [], "rows": [], "verdicts": [verdict.as_json()]}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    verify(tmp_path, tmp_path / "docs")
    assert "c, " not in capsys.readouterr().out
    (comparison,) = report["verdicts"][0]["comparisons"]
    comparison["values"] = [*wrong[1:], 55.0]
    path.write_text(json.dumps(report))
    assert verify(tmp_path, tmp_path / "docs") == 1
    assert "values, " in capsys.readouterr().out


@pytest.mark.parametrize(("own_seeds", "number"), [(True, 8), (False, 10)])
def test_a_claim_leaves_out_seeds_that_were_known(
    tmp_path, write_grid, own_seeds, number
):
    cells = [
        cell(
            f"{run.method}{run.seed}",
            run.method,
            run.seed,
            config=flatten(as_json(run.config)),
            final_loss=1.0 + (run.method == "GlobalGC"),
        )
        for run in planned(write_grid("all.yaml", {"seeds": [*range(10)]}))
    ]
    found = result(*cells)
    write_results(tmp_path / "t.jsonl", found)
    grid = write_grid("t.yaml", {"seeds": [*range(8)]})
    source = PooledResults(Catalogue({"t": grid}), {"t": found})
    lower = rule("lower", to=("GlobalGC",), methods=("AdaGC",))
    given = make_claim(lower, experiment="tiny", own_seeds=own_seeds)
    (verdict,) = judge([given], source)
    (fields,) = verdict.as_json()["comparisons"]
    again = Comparison(fields, Runs(tmp_path), is_once=False).recomputed()
    assert again["num_seeds"] == fields["num_seeds"] == number
    assert again["keys"] == [*fields["keys"]]


def test_what_is_compared_is_every_value_of_what_is_recomputed():
    seen = {"a": {"b": [1.0, 2]}, "none": None, "more": 1}
    expected = {"a": {"b": [1.0, 3, 4]}, "c": "x", "none": None}
    found = [*compare("at", seen, expected)]
    assert [place for place, *values in found if not same(*values)] == [
        *("at, a, b, 1", "at, a, b, 2", "at, c")
    ]
    assert len(found) == 5


def test_a_run_that_no_line_holds_is_named(with_series):
    planted(with_series[0] / "report.json", r'("AdaGC": \[")', r"\1x")
    with pytest.raises(ValueError, match="no such run"):
        verify(*with_series)


def test_it_shares_no_code_with_what_it_checks():
    own = "adagc_lab.reproduce.recount"
    for file in (inspect.getfile(verify), recount.__file__):
        text = Path(file).read_text().replace(own, "numpy")
        imports = re.findall(r"(?m)^ *(?:from|import) (\w+)", text)
        assert {*imports} <= {"numpy", "scipy", *sys.stdlib_module_names}
