# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Targets from grid to report: resumed, stopped, failed, in pieces."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from adagc_lab.record.files import RunRecord, update_run_json
from adagc_lab.reproduce import running
from adagc_lab.reproduce.results import RESULTS, read_results
from adagc_lab.reproduce.running import run_all, run_process
from adagc_lab.reproduce.targets import (
    REPORT,
    STORE,
    TABLES,
    reproduce,
    worst_ratios,
)
from adagc_lab.reproduce.verdicts import CONTRADICTED, REPRODUCED
from lab.reproduce.conftest import (
    FAULTS,
    FakeRuns,
    make_claim,
    planned,
    rule,
)

ROOT = Path(__file__).parents[3]
LOWER = make_claim(
    rule(methods=["AdaGC"], to=["GlobalGC"]),
    target="grid",
    experiment="tiny",
)


@pytest.fixture
def finish(tmp_path, monkeypatch):
    """``finish(run, *grid files)``: what is finished, with another ``run``."""

    def make(run, *paths, output="out", **fields):
        monkeypatch.setattr(running, "run_process", run)
        return reproduce(paths, tmp_path / output, **fields)

    return make


def test_results_and_verdicts_follow_from_the_runs(
    write_grid, finish, tmp_path
):
    paper = {"score (%)": {"AdaGC": 0.5}}
    path = write_grid("grid.yaml", {"seeds": [*range(3, 11)], "paper": paper})
    runs = FakeRuns()
    (done,) = finish(runs, path, claims=[LOWER])
    assert [v.verdict for v in done.verdicts] == [REPRODUCED]
    (part,) = read_results(done.directory / RESULTS).experiments
    assert part == done.result.experiments[0]
    assert part.seeds == [*range(3, 11)]
    assert part.methods == ["GlobalGC", "AdaGC"]
    first = part.all_runs[0]
    assert (first.commit, first.config["clip.name"]) == ("abc", "global_norm")
    assert first.timings == {"wall_seconds": 10.0, "elapsed_seconds": 10.0}
    assert (tmp_path / "out" / STORE / first.key).is_dir()
    assert first.config["model.hidden_size"] == 16
    text = (done.directory / TABLES).read_text()
    (row,) = [r for r in text.splitlines() if r.startswith("| AdaGC |")]
    assert row.endswith("| 0.5 |")
    assert "-1.0" in row
    assert "(p 0.0078)" in row
    assert LOWER.claim in (done.directory / REPORT).read_text()
    higher = rule("higher", to=["GlobalGC"], methods=["AdaGC"])
    claim = dataclasses.replace(LOWER, reproduced_if=(higher,))
    (again,) = finish(runs, path, claims=[claim])
    assert [v.verdict for v in again.verdicts] == [CONTRADICTED]
    assert len(runs.begun) == 16


def test_verdicts_take_committed_runs_too(write_grid, finish):
    first = write_grid("grid.yaml", {"seeds": [1, 2, 3, 4]})
    (old,) = finish(FakeRuns(), first)
    given = {"other": dataclasses.replace(old.result, target="other")}
    second = write_grid("grid.yaml", {"seeds": [5, 6, 7, 8]})
    (done,) = finish(
        FakeRuns(), second, output="b", claims=[LOWER], committed=given
    )
    assert [v.verdict for v in done.verdicts] == [REPRODUCED]
    assert done.result.experiments[0].seeds == [5, 6, 7, 8]


def test_targets_share_their_runs(write_grid, finish):
    runs = FakeRuns()
    first = write_grid("first.yaml")
    second = write_grid("second.yaml", {"name": "same", "seeds": [4, 5]})
    finish(runs, first, second)
    assert len({cell.directory for cell in runs.begun}) == len(runs.begun) == 6
    finish(runs, second)
    assert len(runs.begun) == 6


def test_one_experiment_leaves_the_others_results(write_grid, finish):
    path = write_grid("grid.yaml", {}, {"name": "other"})
    runs = FakeRuns()
    (done,) = finish(runs, path)
    finish(runs, path, only="other")
    experiments = read_results(done.directory / RESULTS).experiments
    assert {e.name for e in experiments} == {"tiny", "other"}


def test_former_methods_are_not_run(write_grid, finish):
    runs = FakeRuns()
    path = write_grid("grid.yaml")
    path.write_text(path.read_text() + "former: [AdaGC]\n")
    (done,) = finish(runs, path)
    assert {run.method for run in runs.begun} == {"GlobalGC"}
    assert done.result.experiments[0].methods == ["GlobalGC"]


@pytest.mark.slow
def test_real_runs_are_paired_resumed_and_reported(write_grid, tmp_path):
    tensor = "model.embed_tokens.weight"
    path = write_grid("g.yaml", {**FAULTS, "seeds": [3], "dynamics": tensor})
    (done,) = reproduce([path], tmp_path / "out", num_jobs=2)
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
    reproduce([path], tmp_path / "out")
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
def test_a_terminated_command_stops_its_runs(write_grid, tmp_path):
    path = write_grid(
        "g.yaml", {"seeds": [3], "changes": {"train": {"max_steps": 100_000}}}
    )
    process = subprocess.Popen(
        [sys.executable, ROOT / "tools/reproduce.py", path],
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    store = tmp_path / "outputs" / STORE
    while len([*store.glob("*/metrics.jsonl")]) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait() == 143
    statuses = [
        json.loads(file.read_text())["status"]
        for file in store.glob("*/run.json")
    ]
    assert statuses == ["stopped", "stopped"]


@pytest.mark.slow
def test_timings_and_the_plan_are_results(write_grid, tmp_path):
    timing = {"name": "steps", "title": "Steps", "config": "run.yaml"}
    timings = [{**timing, "steps": 2, "repetitions": 3}]
    path = write_grid(timings=timings, experiments=[], gpu_hours=True)
    (done,) = reproduce([path], tmp_path / "out")
    steps, plan = read_results(done.directory / RESULTS).experiments
    assert steps.methods[0] == "GlobalGC"
    assert len(steps.values("AdaGC", "step_ms")) == 3
    assert steps.values("GlobalGC", "percent_of_global_gc") == [100.0] * 3
    (saved,) = plan.values("Llama-2 7B, sharding V1", "paper_hours_saved")
    assert saved == pytest.approx(65.8)
    assert "| Llama-2 7B, DP | 1,468.2 | 1,402.4 |" in done.text
    (again,) = reproduce([path], tmp_path / "out")
    assert again.result == done.result


def test_the_worst_ratio_is_to_the_average_before():
    norms = np.array([[1.0, 2.0], [3.0, np.nan], [0.0, 2.2], [1.04, 0.1]])
    expected = [1.0, 3.0, 1.1, 1.04 / 1.02]
    np.testing.assert_allclose(worst_ratios(norms), expected)


def test_something_else_in_the_way_of_a_link_is_named(
    write_grid, finish, tmp_path
):
    (tmp_path / "out/grid/tiny/AdaGC-seed3").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="choose another --output"):
        finish(FakeRuns(), write_grid())


@pytest.fixture
def cells(write_grid):
    """The cells of a tiny grid."""
    return planned(write_grid())


@pytest.mark.slow
def test_run_that_fails_is_reported_with_its_log(write_grid):
    model = {"vocab_size": 100}
    cells = planned(write_grid("grid.yaml", {"changes": {"model": model}}))
    with pytest.raises(RuntimeError, match=r"vocab_size=100.*\.log"):
        run_all(cells[:1], 1)


def test_running_cell_is_stopped(cells):
    cell = cells[0]
    stop = threading.Event()
    stop.set()
    run_process(cell, stop)
    assert not (cell.directory / "run.json").exists()


def test_runs_are_stopped_with_the_command(cells, monkeypatch):
    stopped = []

    def run(cell, stop):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        stop.wait()
        stopped.append(cell)

    monkeypatch.setattr(running, "run_process", run)
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit, match="143"):
            run_all(cells, 1)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert stopped == cells[:1]


def test_pieces_of_a_run_add_up(cells, monkeypatch):
    cell = cells[0]
    commits = iter(["one", "two", "two"])
    seconds = iter([0.0, 5.0, 10.0, 12.0, 20.0, 21.0])
    monkeypatch.setattr(running, "commit", lambda: next(commits))
    monkeypatch.setattr(running, "run_until", lambda *_, **__: None)
    monkeypatch.setattr(running.time, "monotonic", lambda: next(seconds))
    update_run_json(cell.directory, status="running")
    for _ in range(3):
        run_process(cell, threading.Event())
    run = json.loads((cell.directory / "run.json").read_text())
    assert (run["commit"], run["elapsed_seconds"]) == ("one, two", 8.0)
