# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tiny grids, and runs without a process."""

import numpy as np
import pytest
from adagc_lab.record.files import update_run_json
from adagc_lab.reproduce.grid import as_json, load_target, make_runs
from lab.train.runs import make_values, write_steps
from omegaconf import OmegaConf

RUN = make_values("unused", max_steps=20, log_every=10)
EXPERIMENT = {
    **{"name": "tiny", "title": "Tiny", "description": "A tiny model."},
    **{"config": "run.yaml", "seeds": [3, 4]},
    "methods": {
        "GlobalGC": {"clip": {"name": "global_norm", "lambda_abs": 0.5}},
        "AdaGC": {"clip": {"name": "adagc", "t_start": 4}},
    },
}
FAULTS = {"faults": [{"kind": "random_tokens", "start": 8, "every": 4}]}
LOSSES = {"global_norm": 2.0, "adagc": 1.0}
"""Final loss of the made-up runs by clip."""


def planned(path, **limits):
    """The runs of a grid with one experiment."""
    (experiment,) = load_target(path).experiments
    return make_runs(experiment, path, path.parent / "cells", **limits)


def write_run(run, num_steps=None, status="finished"):
    """Write a planned run as if it had ended: a loss of its own each."""
    rng = np.random.default_rng(run.seed)
    level = LOSSES[run.config.clip["name"]] + run.seed / 100
    steps = np.arange(num_steps or run.config.train.max_steps)
    loss = level + 3 * np.exp(-steps / 3) + 0.001 * rng.normal(size=len(steps))
    rows = [{"step_seconds": 0.5, "loss": x} for x in loss.tolist()]
    write_steps(run.directory, rows)
    facts = {"config": as_json(run.config), "seed": run.seed, "commit": "abc"}
    update_run_json(run.directory, status=status, **facts)


@pytest.fixture
def write_grid(tmp_path):
    """``write_grid(file, {changes of an experiment}, ...)``: a grid's path."""
    OmegaConf.save(OmegaConf.create(RUN), tmp_path / "run.yaml")

    def write(file="grid.yaml", *changes, **fields):
        experiments = [{**EXPERIMENT, **change} for change in changes or ({},)]
        grid = {"title": "Grid", "experiments": experiments, **fields}
        OmegaConf.save(OmegaConf.create(grid), tmp_path / file)
        return tmp_path / file

    return write
