# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Grids of paired runs as their files describe them."""

import pytest
from adagc_lab.clips import make_clip
from adagc_lab.reproduce.grid import load_target, make_runs
from lab.reproduce.conftest import EXPERIMENT, FAULTS, planned
from omegaconf import OmegaConf
from pages import ROOT

EXPERIMENTS = ROOT / "configs/experiments"


@pytest.mark.parametrize(
    "path", sorted(EXPERIMENTS.glob("*.yaml")), ids=lambda p: p.stem
)
def test_shipped_grids_are_valid(path, tmp_path):
    target = load_target(path)
    assert target.title
    for experiment in target.experiments:
        cells = make_runs(experiment, path, tmp_path)
        assert len({cell.name for cell in cells}) == len(cells)
        assert len({cell.directory for cell in cells}) == len(cells)
        for cell in cells[: len(cells) // len(experiment.seeds)]:
            if cell.method in target.former:
                with pytest.raises(ValueError, match=r"takes no|preset must"):
                    make_clip(**cell.config.clip)
            else:
                make_clip(**cell.config.clip)


def test_cells_are_paired_and_twins_can_be_left_out(write_grid):
    cells = planned(write_grid("grid.yaml", FAULTS))
    assert len(cells) == 2 * 2 * 2
    assert len({cell.directory for cell in cells}) == 8
    for cell in cells:
        assert cell.config.train.seed == cell.config.data.seed == cell.seed
        assert bool(cell.config.faults) != cell.is_clean_twin
    assert [c.config.clip for c in cells[:3:2]] == [
        {"name": "global_norm", "lambda_abs": 0.5},
        {"name": "adagc", "t_start": 4},
    ]
    path = write_grid("grid.yaml", {**FAULTS, "twins": False})
    assert planned(path) == [c for c in cells if not c.is_clean_twin]


def one(**changes):
    return {"title": "T", "experiments": [{**EXPERIMENT, **changes}]}


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"title": "Empty"}, "grid.yaml: experiments: "),
        ({"title": "T", "experiments": [EXPERIMENT] * 2}, "repeat one"),
        (one(seed=[1]), r"did you mean 'experiments\.0\.seeds'"),
        (one(seeds=[]), r"experiments\.0\.seeds: "),
        (one(seeds=[1, 1]), "repeats"),
    ],
)
def test_bad_files_are_named(tmp_path, grid, message):
    path = tmp_path / "grid.yaml"
    OmegaConf.save(OmegaConf.create(grid), path)
    with pytest.raises(ValueError, match=message):
        load_target(path)
