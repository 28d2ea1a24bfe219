# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a user of the laboratory may give, and few do."""

import gzip
import json

import numpy as np
import pytest

pytest.importorskip("paddlenlp")
pytest.importorskip("pandas")

import huggingface_hub
from adagc_lab.clips.measured import _factor
from adagc_lab.report.measures import describe_run, measure
from adagc_lab.reproduce import store
from adagc_lab.reproduce.grid import load_target
from lab.report.test_report import make_run
from lab.reproduce.conftest import FAULTS, planned, write_grid  # noqa: F401
from lab.train import runs
from lab.train.test_start import constant, fork
from pages import ROOT, load_tool

prepare = load_tool("prepare_data")


@pytest.mark.parametrize(
    "name", ["mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-1.7B", "a/llama"]
)
def test_a_tokenizer_with_a_dot_in_its_name_is_downloaded(
    name, monkeypatch, tmp_path
):
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda asked, **_: tmp_path if asked == name else pytest.fail(asked),
    )
    assert prepare._tokenizer_file(name) == tmp_path / "tokenizer.json"


def test_a_file_that_was_cut_off_is_named(tmp_path, capsys):
    path = tmp_path / "part.json.gz"
    lines = [json.dumps({"text": f"document {n}"}) for n in range(999)]
    path.write_bytes(gzip.compress("\n".join(lines).encode())[:-999])
    output = ["--tokenizer", "bytes", "--output", str(tmp_path / "data")]
    assert prepare.main([str(path), *output]) == 2
    assert f"{path} cannot be read" in capsys.readouterr().err


def test_a_run_whose_loss_died_counts_as_diverged():
    """A clip that zeroes NaN keeps its weights finite."""
    run = make_run(tensors=False)
    run.loss[-100:] = np.nan
    row = describe_run(run, 200)
    assert row["status"] == "diverged"
    assert measure(row)["end"] == np.inf


def test_faults_of_a_grid_s_config_are_injected(write_grid):  # noqa: F811
    changed = planned(write_grid("a.yaml", {"changes": FAULTS}))
    given = planned(write_grid("b.yaml", FAULTS))
    assert [run.config for run in changed] == [run.config for run in given]


def test_no_job_is_a_mistake(capsys):
    tool = load_tool("reproduce")
    assert tool.main(["quickstart", "--jobs", "0", "--dry-run"]) == 2
    assert "jobs" in capsys.readouterr().err


def test_other_steps_to_skip_replace_a_row(tmp_path):
    (experiment, *_) = load_target(
        ROOT / "configs/experiments/quickstart.yaml"
    ).experiments
    rows = []
    for skip in (200, 100):
        row = describe_run(make_run(tensors=False), skip)
        names = {"target": "t", "experiment": experiment.name, "method": "m"}
        rows = [{**names, "seed": 1, "clean_twin": 0, "digest": "d", **row}]
        store.append(tmp_path, "t", rows)
    assert store.load(tmp_path)["skip_steps"].tolist() == [100]


def test_an_enlarged_gradient_is_recorded_as_it_is():
    assert _factor(1.0, 2.0) == 2.0
    assert _factor(1.0, 1.0 + 1e-7) == 1.0


def test_a_fork_to_another_start_of_gamma_begins_anew(tmp_path):
    values = constant(tmp_path / "old", keep_checkpoints=9)
    assert runs.run(values)[0] == "finished"
    for number, clip in enumerate(
        [{"init": "constant", "init_value": 0.5}, {"init": "warmup_min"}]
    ):
        changed = {"clip": {"name": "adagc", **clip}}
        source = tmp_path / ("new0" if number else "old")
        target = tmp_path / f"new{number}"
        values = constant("", keep_checkpoints=9, **changed)
        assert fork(values, source, target, step=8)[0] == "finished"
