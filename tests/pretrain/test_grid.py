# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Grids of paired runs, and the report that is made of them."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from paddle_adagc.pretrain.grid import load_experiments, make_cells, run_cells
from paddle_adagc.pretrain.record import RunRecord
from paddle_adagc.report.reproduce import reproduce

EXPERIMENTS = Path(__file__).parents[2] / "configs/experiments"
EXPERIMENT = {
    "name": "tiny",
    "title": "Tiny",
    "description": "A tiny model.",
    "config": "run.yaml",
    "seeds": [3, 4],
    "methods": {
        "GlobalGC": {"clip": {"name": "global_norm", "lambda_abs": 0.5}},
        "AdaGC": {"clip": {"name": "adagc", "t_start": 4}},
    },
    "faults": [{"kind": "random_tokens", "start": 8, "every": 4}],
}


@pytest.fixture
def grid_file(tmp_path):
    run = {
        "model": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        "data": {"seq_length": 16, "validation_size": 8},
        "clip": {"name": "adagc", "beta": 0.5},
        "record": {"tensors": True, "moments": True},
        "train": {
            "output_dir": "unused",
            "max_steps": 20,
            "batch_size": 4,
        },
    }
    OmegaConf.save(OmegaConf.create(run), tmp_path / "run.yaml")
    return write_grid(tmp_path)


def write_grid(directory, **changes):
    grid = {"title": "Grid", "experiments": [{**EXPERIMENT, **changes}]}
    path = directory / "grid.yaml"
    OmegaConf.save(OmegaConf.create(grid), path)
    return path


@pytest.mark.parametrize(
    "path", sorted(EXPERIMENTS.glob("*.yaml")), ids=lambda p: p.stem
)
def test_shipped_grids_are_valid(path, tmp_path):
    title, experiments = load_experiments(path)
    assert title
    for experiment in experiments:
        assert make_cells(experiment, path, tmp_path)


def test_cells_are_paired(grid_file, tmp_path):
    _, (experiment,) = load_experiments(grid_file)
    cells = make_cells(experiment, grid_file, tmp_path)
    assert len(cells) == 2 * 2 * 2
    assert len({cell.directory for cell in cells}) == 8
    for cell in cells:
        assert cell.config.train.seed == cell.config.data.seed == cell.seed
        assert bool(cell.config.faults) != cell.is_clean_twin
    assert [c.config.clip for c in cells[:3:2]] == [
        {"name": "global_norm", "lambda_abs": 0.5},
        {"name": "adagc", "t_start": 4},
    ]


def test_faults_move_with_the_length_of_the_runs(grid_file, tmp_path):
    _, (experiment,) = load_experiments(grid_file)
    cells = make_cells(experiment, grid_file, tmp_path, max_steps=40)
    (fault,) = cells[1].config.faults
    assert (fault.start, fault.every) == (16, 8)
    assert cells[1].config.train.max_steps == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": [1]}, "'seed', did you mean 'seeds'"),
        ({"seeds": []}, "needs seeds"),
        ({"seeds": [1, 1]}, "repeats"),
    ],
)
def test_bad_grids_are_named(grid_file, changes, message):
    write_grid(grid_file.parent, **changes)
    with pytest.raises(ValueError, match=message):
        load_experiments(grid_file)


def test_grid_runs_once_and_its_report_says_what_it_measured(
    grid_file, tmp_path, capsys
):
    write_grid(tmp_path, seeds=[3])
    output = tmp_path / "out"
    report = reproduce(grid_file, output, num_jobs=2)
    html = report.read_text()
    assert "GlobalGC" in html
    assert "AdaGC" in capsys.readouterr().out
    assert (output / "figures/tiny-loss.png").stat().st_size > 5000
    assert (output / "tables.md").read_text().startswith("# Grid")
    run_directories = sorted(p.parent for p in output.glob("tiny/*/run.json"))
    assert [d.name for d in run_directories] == [
        "AdaGC-seed3",
        "AdaGC-seed3-clean",
        "GlobalGC-seed3",
        "GlobalGC-seed3-clean",
    ]
    faulty, clean = (
        RunRecord.load(output / "tiny" / f"AdaGC-seed3{suffix}")
        for suffix in ("", "-clean")
    )
    assert sorted(faulty.faults) == [8, 12, 16]
    assert (faulty.loss[:8] == clean.loss[:8]).all()
    assert (faulty.loss[9:] != clean.loss[9:]).any()

    before = {d: (d / "run.json").stat().st_mtime_ns for d in run_directories}
    reproduce(grid_file, output, num_jobs=2)
    assert before == {
        d: (d / "run.json").stat().st_mtime_ns for d in run_directories
    }


def test_run_that_fails_is_reported_with_its_log(grid_file, tmp_path):
    write_grid(tmp_path, changes={"model": {"vocab_size": 100}}, seeds=[3])
    _, (experiment,) = load_experiments(grid_file)
    cells = make_cells(experiment, grid_file, tmp_path / "out")
    with pytest.raises(RuntimeError, match=r"vocab_size=100.*\.log"):
        run_cells(cells[:1], 1)


def test_unfinished_cell_is_run_again(grid_file, tmp_path):
    _, (experiment,) = load_experiments(grid_file)
    cell = make_cells(experiment, grid_file, tmp_path / "out")[0]
    run_cells([cell], 1)
    run_file = cell.directory / "run.json"
    run = json.loads(run_file.read_text())
    run_file.write_text(json.dumps({**run, "status": "running"}))
    run_cells([cell], 1)
    assert json.loads(run_file.read_text())["status"] == "finished"
