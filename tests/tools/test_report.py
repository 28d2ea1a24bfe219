# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``tools/report.py`` as a user calls it: one run, several, mistakes."""

import shutil
from pathlib import Path

import pytest
from adagc_lab.record.files import update_run_json
from adagc_lab.report.experiment import compare_runs
from lab.report.conftest import make_directory
from pages import load_tool

main = load_tool("report").main


@pytest.fixture
def make(tmp_path):
    """``make(name, ...)``: a run directory of 60 steps without tensors."""

    def directory(name, **fields):
        fields = {"steps": 60, "tensors": False} | fields
        make_directory(tmp_path / name, **fields)
        return tmp_path / name

    return directory


def test_runs_are_written_as_one_page(make, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    one, other = make("deep/a", method="GlobalGC"), make("b")
    assert main([str(one), "--output", "out/r.html"]) == 0
    assert "Mean training loss" in Path("out/r.html").read_text("utf-8")
    assert main([str(one), str(other), "--output", "report.html"]) == 0
    assert capsys.readouterr().out.endswith("report: report.html\n")
    assert "GlobalGC, AdaGC" in Path("report.html").read_text("utf-8")


def test_runs_with_other_seeds_are_methods_seed_by_seed(make):
    paths = [
        make(f"{method}-{seed}", method=method, seed=seed)
        for method in ("GlobalGC", "AdaGC")
        for seed in (2, 1)
    ]
    experiment = compare_runs(paths)
    assert experiment.seeds == [1, 2]
    for method, runs in experiment.runs.items():
        assert [r.name for r in runs] == [f"{method}-1", f"{method}-2"]
    assert list(experiment.runs) == ["GlobalGC", "AdaGC"]
    assert experiment.skip_steps == 6
    assert experiment.description == ""


def test_runs_that_do_not_pair_stand_for_themselves(make):
    paths = [make("a", method="GlobalGC", seed=1), make("b", seed=2)]
    for path, processor in zip(paths, ("EPYC (AVX2)", "Xeon"), strict=True):
        update_run_json(path, machine={"processor": processor})
    experiment = compare_runs(paths)
    assert list(experiment.runs) == ["GlobalGC", "AdaGC"]
    assert experiment.seeds == [None]
    text = experiment.description
    assert "partly those of the seeds" in text
    assert "different processors (EPYC (AVX2), Xeon)" in text


def test_a_run_and_its_longer_fork_share_steps(make):
    paths = [make("run"), make("fork", steps=90)]
    update_run_json(paths[1], config={"clip": {"name": "adagc", "beta": 0.5}})
    update_run_json(paths[1], status="diverged")  # later
    experiment = compare_runs(paths)
    assert list(experiment.runs) == ["run", "fork"]  # of the same clip
    (_,), (fork,) = experiment.runs.values()
    assert (fork.num_steps, fork.run["status"]) == (60, "diverged later")
    assert "over the first 60 steps" in experiment.description
    assert experiment.window == 200
    paths[1] = make("c", method="GlobalGC", steps=40)
    update_run_json(paths[1], status="diverged")
    (run,) = compare_runs(paths).runs["GlobalGC"]
    assert (run.num_steps, run.run["status"]) == (40, "diverged")


def test_mistakes_name_the_path_and_the_fix(make, tmp_path, capsys):
    run = make("runs/a")
    cut = tmp_path / "cut"
    shutil.copytree(run, cut)
    (cut / "metrics.jsonl").write_text("")
    for arguments, message in (
        ([tmp_path / "none"], f"{tmp_path / 'none'} is no run: it has no run."),
        ([tmp_path / "runs"], f"runs in it: {run}"),
        ([run, run], f"{run} is given twice"),
        ([cut], f"{cut} holds no step yet: wait"),
        ([run, "--output", str(tmp_path)], "a directory: name a file"),
    ):
        assert main([str(argument) for argument in arguments]) == 2
        assert message in capsys.readouterr().err
    (run / "metrics.jsonl").write_text('{"step": 0\n')
    assert main([str(run)]) == 2
    assert "metrics.jsonl, line 1: damaged" in capsys.readouterr().err
