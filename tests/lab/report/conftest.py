# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Synthetic run directories."""

import numpy as np
import pytest
from adagc_lab.record.files import CLIP_H, MOMENTS, RunRecord, update_run_json
from adagc_lab.report.experiment import Experiment
from lab.written import write_steps

NAMES = ["embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "norm"]
CLIPS = {
    "GlobalGC": {"name": "global_norm", "lambda_abs": 1.0},
    "AdaGC": {"name": "adagc", "lambda_abs": 1.0, "beta": 0.9},
}


def make_experiment(runs, **fields):
    """An experiment of short runs."""
    defaults = {"title": "Test", "description": "A test."}
    return Experiment(runs=runs, **({"skip_steps": 60} | defaults | fields))


def make_losses(seed=1, steps=400, floor=1.0, spikes=None, nan_from=None):
    """Fall to ``floor``; ``spikes``: step -> height that fades in 30 steps."""
    rng = np.random.default_rng(seed)
    number = np.arange(steps)
    loss = floor + 4.5 * np.exp(-14 * number / steps)
    loss += 0.01 * rng.standard_normal(steps)
    for step, height in (spikes or {}).items():
        after = np.maximum(number - step, 0)
        loss += np.where(number >= step, height * np.exp(-after / 8.0), 0.0)
    if nan_from is not None:
        loss[nan_from:] = np.nan
        loss = loss[: nan_from + 5]
    return loss


def make_tensors(seed, num_steps, surge):
    """Norm, moments, gamma and h, ``[num_steps, num_tensors]`` each."""
    rng = np.random.default_rng(seed)
    shape = 4, num_steps, len(NAMES)
    tables = np.exp(0.1 * rng.standard_normal(shape)).astype(np.float32)
    found = dict(zip(("norm", "gamma", *MOMENTS), tables, strict=True))
    if surge is not None:
        found["norm"][surge : surge + 3, :2] *= 10, 100
    return found | {"h": 1 / np.maximum(found["norm"], 1)}


def make_directory(
    directory,
    *,
    method="AdaGC",
    seed=1,
    tensors=True,
    faults=None,
    surge=None,
    status="finished",
    **losses,
):
    """Write a run, calm but for these, and read it back."""
    names = NAMES if tensors else []
    loss = make_losses(seed, **losses)
    rows = [{"loss": x, "clip_seconds": 0.0012} for x in loss.tolist()]
    rows[-1]["eval_loss"] = 1.1
    for step, kind in (faults or {}).items():
        rows[step]["faults"] = [{"kind": kind, "tensors": []}]
    tables = make_tensors(seed, len(loss), surge)
    for i, row in enumerate(rows if names else ()):
        row |= {name: tables[name][i].tolist() for name in MOMENTS}
        row[CLIP_H] = tables["h"][i].tolist()
    write_steps(directory, rows, names, tables if names else None)
    update_run_json(
        directory,
        config={"clip": CLIPS[method], "optimizer": {"beta2": 0.999}},
        seed=seed,
        versions={"paddlepaddle": "3.3.1"},
        status=status,
    )
    return RunRecord.load(directory)


@pytest.fixture
def make_run(tmp_path):
    """``make_run(method=..., seed=..., ...)``: a run, calm but for these."""

    def make(**fields):
        number = len([*tmp_path.glob("run-*")])
        return make_directory(tmp_path / f"run-{number}", **fields)

    return make
