# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tiny grids, made-up claims and results, runs without a process."""

import dataclasses

import numpy as np
import pytest
from adagc_lab.record.files import RunWriter, update_run_json
from adagc_lab.reproduce.claims import Claim, Condition
from adagc_lab.reproduce.grid import as_json, load_target, make_runs
from adagc_lab.reproduce.results import (
    ExperimentResult,
    RunResult,
    TargetResult,
)
from omegaconf import OmegaConf

RUN = {
    "model": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    },
    "data": {"seq_length": 16, "validation_size": 8},
    "clip": {"name": "adagc", "beta": 0.5},
    "record": {"tensors": True, "moments": True},
    "train": {"output_dir": "unused", "max_steps": 20, "batch_size": 4},
}
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
}
FAULTS = {"faults": [{"kind": "random_tokens", "start": 8, "every": 4}]}
LOSSES = {"global_norm": 2.0, "adagc": 1.0}
"""Final loss of the made-up runs by clip."""


def planned(path, **limits):
    """The runs of a grid with one experiment."""
    (experiment,) = load_target(path).experiments
    return make_runs(experiment, path, path.parent / "cells", **limits)


def make_claim(*conditions, **fields):
    """A claim with these conditions."""
    texts = {"id": "c", "where": "Table 1", "claim": "It is so."}
    place = {"target": "t", "experiment": "e", "reproduced_if": conditions}
    return Claim(**{**texts, **place, **fields})


def rule(expect="lower", measure="final_loss", to=("B",), **fields):
    """A condition: A's final loss is lower than B's, unless told otherwise."""
    fields = {"methods": ("A",), "to": to, **fields}
    return Condition(measure=measure, expect=expect, **fields)


def cell(
    key, method="A", seed=1, steps=2500, config=None, cpu=None, **measures
):
    """The result of a run."""
    return RunResult(
        method=method,
        seed=seed,
        key=key,
        measures={"steps": float(steps), **measures},
        config=config or {},
        machine={"processor": cpu, "instruction_sets": []} if cpu else {},
    )


def result(*cells, target="t", config=None, **fields):
    """The result of a target with one experiment of runs that share options."""
    fields = {"name": "e", "title": "E", **fields}
    runs = [
        dataclasses.replace(run, config={**(config or {}), **run.config})
        for run in cells
    ]
    experiment = ExperimentResult(all_runs=runs, **fields)
    return TargetResult(target=target, title="T", experiments=[experiment])


class FakeRuns:
    """Writes runs at once: a loss of its own for every clip and seed."""

    def __init__(self):
        self.begun = []

    def __call__(self, cell, stop):
        self.begun.append(cell)
        rng = np.random.default_rng(cell.seed)
        writer = RunWriter(cell.directory, [])
        level = LOSSES[cell.config.clip["name"]] + cell.seed / 100
        for step in range(cell.config.train.max_steps):
            row = {"step": step, "step_seconds": 0.5}
            loss = level + 3 * np.exp(-step / 3) + 0.001 * rng.normal()
            writer.append({**row, "loss": loss})
        writer.close()
        update_run_json(
            cell.directory,
            config=as_json(cell.config),
            seed=cell.seed,
            status="finished",
            commit="abc",
            versions={"paddlepaddle": "3.3.1"},
            wall_seconds=10.0,
            elapsed_seconds=10.0,
        )


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
