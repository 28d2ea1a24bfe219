# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Synthetic runs."""

import numpy as np
from adagc_lab.record.files import MOMENTS, RunRecord
from adagc_lab.report.experiment import Experiment

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


def make_run(
    *,
    method="AdaGC",
    seed=1,
    tensors=True,
    faults=None,
    surge=None,
    status="finished",
    **losses,
):
    """A run, calm but for these."""
    names = NAMES if tensors else []
    loss = make_losses(seed, **losses)
    tables = make_tensors(seed, len(loss), surge)
    tables["clipped_norm"] = tables["norm"] * tables["h"]
    evaluated = np.full(len(loss), np.nan)
    evaluated[-1] = 1.1
    return RunRecord(
        name="run",
        run={"config": {"clip": CLIPS[method]}, "seed": seed, "status": status},
        metrics={
            "loss": loss,
            "eval_loss": evaluated,
            "clip_seconds": np.full(len(loss), 0.0012),
        },
        faults={
            step: [{"kind": kind, "tensors": []}]
            for step, kind in (faults or {}).items()
        },
        tensor_names=names,
        tensors={key: x[:, : len(names)] for key, x in tables.items()},
    )
