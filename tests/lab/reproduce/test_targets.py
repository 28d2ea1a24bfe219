# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Targets from grid to report: resuming, stopping, real runs."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab.reproduce.conftest import FAULTS, make_claim, rule

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.reproduce.results import RESULTS, read_results
from paddle_adagc.lab.reproduce.targets import (
    REPORT,
    STORE,
    TABLES,
    Reproduction,
)
from paddle_adagc.lab.reproduce.verdicts import CONTRADICTED, REPRODUCED

ROOT = Path(__file__).parents[3]
LOWER = make_claim(
    rule(methods=["AdaGC"], to=["GlobalGC"]),
    target="grid",
    experiment="tiny",
)


@pytest.fixture(autouse=True)
def unrendered(monkeypatch):
    """Pages without pictures, which take seconds."""
    monkeypatch.setattr(
        "paddle_adagc.lab.report.html.svg_data_uri", lambda figure: "data:,"
    )


@pytest.fixture
def reproduce(tmp_path):
    """``reproduce(run, *grid files)``: what is finished; one job."""

    def make(run, *paths, output="out", **fields):
        target = Reproduction(paths, tmp_path / output, run=run, **fields)
        return target.reproduce()

    return make


def test_results_and_verdicts_follow_from_the_runs(
    write_grid, fake_runs, reproduce, tmp_path
):
    paper = {"score (%)": {"AdaGC": 0.5}}
    path = write_grid("grid.yaml", {"seeds": [*range(3, 11)], "paper": paper})
    runs = fake_runs()
    (done,) = reproduce(runs, path, claims=[LOWER])
    assert [v.verdict for v in done.verdicts] == [REPRODUCED]
    (part,) = read_results(done.directory / RESULTS).experiments
    assert part == done.result.experiments[0]
    assert part.seeds == [*range(3, 11)]
    assert part.methods == ["GlobalGC", "AdaGC"]
    first = part.all_runs[0]
    assert (first.commit, first.config["clip.name"]) == ("abc", "global_norm")
    assert first.timings == {"wall_seconds": 10.0, "elapsed_seconds": 10.0}
    assert (tmp_path / "out" / STORE / first.key).is_dir()
    assert part.config["model.hidden_size"] == 16
    assert "clip.name" not in part.config
    text = (done.directory / TABLES).read_text()
    (row,) = [r for r in text.splitlines() if r.startswith("| AdaGC |")]
    assert row.endswith("| 0.5 |")
    assert "-1.0" in row
    assert "(p 0.0078)" in row
    assert LOWER.claim in (done.directory / REPORT).read_text()
    higher = rule("higher", to=["GlobalGC"], methods=["AdaGC"])
    claim = dataclasses.replace(LOWER, reproduced_if=(higher,))
    (again,) = reproduce(runs, path, claims=[claim])
    assert [v.verdict for v in again.verdicts] == [CONTRADICTED]
    assert len(runs.begun) == 16


def test_verdicts_take_committed_runs_too(write_grid, fake_runs, reproduce):
    first = write_grid("grid.yaml", {"seeds": [1, 2, 3, 4]})
    (old,) = reproduce(fake_runs(), first)
    given = {"other": dataclasses.replace(old.result, target="other")}
    second = write_grid("grid.yaml", {"seeds": [5, 6, 7, 8]})
    (done,) = reproduce(
        fake_runs(), second, output="b", claims=[LOWER], committed=given
    )
    assert [v.verdict for v in done.verdicts] == [REPRODUCED]
    assert done.result.experiments[0].seeds == [5, 6, 7, 8]


def test_targets_share_their_runs(write_grid, fake_runs, reproduce):
    runs = fake_runs()
    first = write_grid("first.yaml")
    second = write_grid("second.yaml", {"name": "same", "seeds": [4, 5]})
    reproduce(runs, first, second)
    assert len({cell.directory for cell in runs.begun}) == len(runs.begun) == 6
    reproduce(runs, second)
    assert len(runs.begun) == 6


@pytest.mark.slow
def test_real_runs_are_paired_resumed_and_reported(write_grid, tmp_path):
    tensor = "model.embed_tokens.weight"
    path = write_grid("g.yaml", {**FAULTS, "seeds": [3], "dynamics": tensor})
    target = Reproduction([path], tmp_path / "out", num_jobs=2)
    (done,) = target.reproduce()
    assert "GlobalGC" in (done.directory / REPORT).read_text()
    assert (done.directory / TABLES).read_text().startswith("# Grid")
    links = sorted((done.directory / "tiny").iterdir())
    assert [link.name for link in links] == [
        f"{method}-seed3{end}"
        for method in ("AdaGC", "GlobalGC")
        for end in ("", "-clean")
    ]
    faulty, clean = (RunRecord.load(link) for link in links[:2])
    assert sorted(faulty.faults) == [8, 12, 16]
    assert (faulty.loss[:8] == clean.loss[:8]).all()
    assert (faulty.loss[9:] != clean.loss[9:]).any()
    assert faulty.run["elapsed_seconds"] > faulty.run["wall_seconds"] > 0

    run_file = links[0].resolve() / "run.json"
    run = json.loads(run_file.read_text())
    run_file.write_text(json.dumps({**run, "status": "running"}))
    before = {d: (d / "run.json").stat().st_mtime_ns for d in links[1:]}
    target.reproduce()
    assert json.loads(run_file.read_text())["status"] == "finished"
    assert before == {d: (d / "run.json").stat().st_mtime_ns for d in links[1:]}


@pytest.mark.slow
def test_a_grid_of_one_s_own(write_grid, tmp_path):
    path = write_grid("mine.yaml", {"seeds": [3]}, {"seeds": [3], "name": "b"})
    done = subprocess.run(
        [sys.executable, ROOT / "tools/reproduce.py", path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert "2 of 2 runs done" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "1 of 2: Tiny",
        "  GlobalGC: no step is judged: too few came before",
    ]
    assert lines[3] == "2 of 2: Tiny"
    assert lines[-2].startswith("Fewer than 3 seeds are an illustration")
    assert lines[-1] == "report: outputs/mine/report.html"
    assert (tmp_path / "outputs/mine/report.html").exists()


@pytest.mark.slow
def test_timings_and_the_plan_are_results(write_grid, tmp_path):
    timing = {"name": "steps", "title": "Steps", "config": "run.yaml"}
    timings = [{**timing, "steps": 2, "repetitions": 3}]
    path = write_grid(timings=timings, experiments=[], gpu_hours=True)
    target = Reproduction([path], tmp_path / "out")
    (done,) = target.reproduce()
    steps, plan = read_results(done.directory / RESULTS).experiments
    assert steps.methods[0] == "GlobalGC"
    assert len(steps.values("AdaGC", "step_ms")) == 3
    assert steps.values("GlobalGC", "percent_of_global_gc") == [100.0] * 3
    (saved,) = plan.values("Llama-2 7B, sharding V1", "paper_hours_saved")
    assert saved == pytest.approx(65.8)
    assert "| Llama-2 7B, DP | 1,468.2 | 1,402.4 |" in done.text
    (again,) = target.reproduce()
    assert again.result == done.result


def test_something_else_in_the_way_of_a_link_is_named(
    write_grid, fake_runs, reproduce, tmp_path
):
    (tmp_path / "out/grid/tiny/AdaGC-seed3").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="choose another --output"):
        reproduce(fake_runs(), write_grid())
