# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Targets from grid to rows and report: resumed, stopped, failed."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from adagc_lab.record.files import RunRecord
from adagc_lab.reproduce import store
from adagc_lab.reproduce.pairs import Pairs
from adagc_lab.reproduce.running import has_ended, run_all
from adagc_lab.reproduce.targets import STORE, Target, plan_text
from lab.reproduce.conftest import FAULTS, planned, write_run
from pages import ROOT


@pytest.fixture
def finish(tmp_path):
    """``finish(*grid files)``: all rows, and the runs that were not there.

    Those are written here; a target never runs what has ended.
    """
    out = tmp_path / "out"

    def make(*paths, write=write_run, **options):
        begun = []
        for path in paths:
            target = Target.plan(path, out, **options)
            for run in (run for _, runs in target.grid for run in runs):
                if not has_ended(run):
                    write(run)
                    begun.append(run)
            target.run(out, out / "results", 1)
        return store.load(out / "results"), begun

    return make


def test_rows_and_the_report_follow_from_the_runs(
    write_grid, finish, tmp_path, capsys
):
    path = write_grid("grid.yaml", {"seeds": [*range(3, 11)]})
    rows, begun = finish(path)
    assert len(rows) == len(begun) == 16
    first = rows.iloc[0]
    assert (first["target"], first["experiment"]) == ("grid", "tiny")
    assert (first["commit"], first["step_ms"]) == ("abc", 500.0)
    assert (tmp_path / "out" / STORE / first["digest"]).is_dir()
    assert first["loss"][-1] == pytest.approx(2.03, abs=0.02)
    line = r"\| AdaGC +\| +8 \| +0 \| +\S+ \| +1\.07. \| +-1\.0\d\d \(-1"
    assert re.search(line, capsys.readouterr().out)
    assert "GlobalGC" in (tmp_path / "out/grid/report.html").read_text()
    assert len(finish(path)[0]) == 16


def test_targets_share_runs_and_former_methods_rest(write_grid, finish):
    first = write_grid("first.yaml")
    second = write_grid("second.yaml", {"name": "same", "seeds": [4, 5]})
    rows, begun = finish(first, second)
    assert len({run.directory for run in begun}) == len(begun) == 6
    assert len(rows) == 8
    third = write_grid("third.yaml", {"seeds": [7, 8]}, former=["AdaGC"])
    rows, begun = finish(third, num_seeds=1)
    assert [(run.method, run.seed) for run in begun] == [("GlobalGC", 7)]


def test_more_seeds_of_one_experiment_are_added(write_grid, finish):
    path = write_grid("grid.yaml", {}, {"name": "other", "seeds": [3, 4, 5]})
    first, _ = finish(path, num_seeds=1, only="tiny")
    rows, begun = finish(path, num_seeds=2, only="tiny")
    assert (rows["seed"].tolist(), len(begun)) == ([3, 3, 4, 4], 2)
    assert {*rows["experiment"]} == {"tiny"}
    kept = rows.iloc[:2].drop(columns="loss")
    pd.testing.assert_frame_equal(kept, first.drop(columns="loss"))
    assert len(finish(path)[0]) == 4 + 6
    with pytest.raises(ValueError, match="has \\['tiny', 'other'\\], not 'no'"):
        finish(path, only="no")


def test_a_run_that_diverged_counts_with_the_others(write_grid, finish):
    def diverge(run):
        if (run.seed, run.method) == (4, "AdaGC"):
            write_run(run, 9, "diverged")
        else:
            write_run(run)

    rows, _ = finish(write_grid(), write=diverge)
    assert {*rows["steps"]} == {20}
    assert Pairs(rows, "GlobalGC").differences("AdaGC", 20, "end")[1] == np.inf


def test_a_dry_run_says_what_is_missing(write_grid, finish, tmp_path):
    path = write_grid("grid.yaml")
    out = tmp_path / "out"
    assert len(Target.plan(path, out).missing()) == 4
    rows, _ = finish(path)
    assert Target.plan(path, out).missing() == {}
    longer = Target.plan(path, out, max_steps=3600)
    path = write_grid("many.yaml", {"seeds": [*range(9, 31)]})
    many = Target.plan(path, out, max_steps=60)
    lines = plan_text([longer, longer, many], rows).splitlines()
    assert [*lines[1:5], *lines[24:]] == [
        "grid: missing runs: 4, about 2.0 hours on one core",
        "many: missing runs: 44, about 22.0 minutes on one core (guessed)",
        "all: missing runs: 48, about 2.4 hours on one core (guessed)",
        "  grid/tiny/GlobalGC-seed3: 3,600 steps",
        "  and 28 more",
    ]


@pytest.mark.slow
def test_real_runs_are_paired_resumed_and_reported(write_grid, tmp_path):
    tensor = "model.embed_tokens.weight"
    path = write_grid("g.yaml", {**FAULTS, "seeds": [3], "dynamics": tensor})
    out = tmp_path / "out"
    Target.plan(path, out).run(out, out / "results", 2)
    links = sorted((out / "g/tiny").iterdir())
    assert [link.name for link in links] == [
        f"{method}-seed3{end}"
        for method in ("AdaGC", "GlobalGC")
        for end in ("", "-clean")
    ]
    faulty, clean = (RunRecord.load(link) for link in links[:2])
    assert sorted(faulty.faults) == [8, 12, 16]
    assert (faulty.loss[:8] == clean.loss[:8]).all()
    assert (faulty.loss[9:] != clean.loss[9:]).any()
    rows = store.load(out / "results").set_index(["method", "clean_twin"])
    row = rows.loc[("AdaGC", 0)]
    assert row["faults"] == row["left_out"] == "8-8;12-12;16-16"
    assert rows.loc[("AdaGC", 1)]["faults"] == ""

    run_file = links[0].resolve() / "run.json"
    run = json.loads(run_file.read_text())
    run_file.write_text(json.dumps({**run, "status": "running"}))
    before = {d: (d / "run.json").stat().st_mtime_ns for d in links[1:]}
    Target.plan(path, out).run(out, out / "results", 1)
    assert json.loads(run_file.read_text())["status"] == "finished"
    assert before == {d: (d / "run.json").stat().st_mtime_ns for d in links[1:]}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_a_command_stops_its_runs(write_grid, tmp_path, number):
    path = write_grid(
        "g.yaml", {"seeds": [3], "changes": {"train": {"max_steps": 100_000}}}
    )
    process = subprocess.Popen(
        [sys.executable, ROOT / "tools/reproduce.py", path],
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    folder = tmp_path / "outputs" / STORE
    while len([*folder.glob("*/record/record.sqlite")]) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait() in (143, -signal.SIGKILL)
    for file in folder.glob("*/run.json"):
        while json.loads(file.read_text())["status"] == "running":
            time.sleep(0.05)
        assert json.loads(file.read_text())["status"] == "stopped"


_EACH_KIND = ("fp8", "figure-optimizers", "table-spike-score", "rates-why")
"""Targets that ``.ci/run`` tries; the others are run before a release."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[] if path.stem in _EACH_KIND else pytest.mark.long,
        )
        for path in sorted((ROOT / "configs/experiments").glob("*.yaml"))
    ],
)
def test_every_target_runs(path, tmp_path):
    """Ten steps of a seed, two methods of the first experiment."""
    # The novels of docs/training.md are not here.
    text = path.read_text("utf-8")
    text = text.replace("kind: mmap, prefix: data/austen", "kind: stdlib")
    grid = tmp_path / path.name
    grid.write_text(text.replace("../", f"{ROOT}/configs/"), "utf-8")
    target = Target.plan(grid, tmp_path, max_steps=10, num_seeds=1)
    experiment, runs = target.grid[0]
    methods = [*dict.fromkeys(run.method for run in runs)][:2]
    kept = [run for run in runs if run.method in methods]
    target = dataclasses.replace(target, grid=[(experiment, kept)])
    report = target.run(tmp_path, tmp_path / "results", 2)
    assert "Loss at the end" in report.read_text("utf-8")
    assert {*store.load(tmp_path / "results")["method"]} == {*methods}


@pytest.mark.slow
def test_run_that_fails_is_reported_with_its_log(write_grid):
    model = {"vocab_size": 100}
    cells = planned(write_grid("grid.yaml", {"changes": {"model": model}}))
    with pytest.raises(RuntimeError, match=r"vocab_size=100.*\.log"):
        run_all(cells[:1], 1)
