# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Synthetic run directories, written by the real RunWriter."""

import types

import numpy as np
import pytest
from adagc_lab.record.files import (
    QUANTITIES,
    RunRecord,
    RunWriter,
    update_run_json,
)
from adagc_lab.report.experiment import Experiment

LAYER_TENSORS = (
    *(f"attention.{part}_proj" for part in "qkvo"),
    *("input_layernorm", "post_attention_layernorm"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)
CALM = {
    "method": "AdaGC",
    "seed": 1,
    "steps": 400,
    "floor": 1.0,  # loss that the run ends at, nat
    "noise": 0.01,
    "spikes": {},  # step -> height in nat; it decays within about 30 steps
    "outliers": (),  # steps around which most gradient norms surge
    "faults": {},  # step -> fault
    "nan_from": None,  # step from which the loss is NaN; 5 steps later: the end
    "layers": 1,  # whose tensors are logged; 0 logs no tensors
    "status": "finished",
}


def tensor_names(num_layers):
    """Names of a small decoder, in the model's order."""
    layers = [
        f"layers.{layer}.{name}.weight"
        for layer in range(num_layers)
        for name in LAYER_TENSORS
    ]
    return ["embed_tokens.weight", *layers, "norm.weight", "lm_head.weight"]


def make_experiment(runs, **fields):
    """An experiment of short runs."""
    defaults = {
        "title": "Test",
        "description": "A test.",
        "skip_steps": 60,
        "windows": (100, 40),
    }
    return Experiment(runs=runs, **(defaults | fields))


def losses(spec):
    """The loss series of a run."""
    rng = np.random.default_rng(spec.seed)
    steps = np.arange(spec.steps)
    loss = spec.floor + 4.5 * np.exp(-steps / (spec.steps / 14))
    loss += spec.noise * rng.standard_normal(spec.steps)
    for step, height in spec.spikes.items():
        after = steps - step
        loss += np.where(after >= 0, height * np.exp(-after / 8.0), 0.0)
    if spec.nan_from is not None:
        loss[spec.nan_from :] = np.nan
        loss = loss[: spec.nan_from + 5]
    return loss


def tensor_blocks(spec, names, num_steps):
    """Norms, gamma and moments: ``[num_steps, len(QUANTITIES), tensors]``."""
    rng = np.random.default_rng(spec.seed + 1000)
    scale = np.exp(rng.normal(-2.5, 0.8, len(names)))
    norm = scale * np.exp(0.12 * rng.standard_normal((num_steps, len(names))))
    for step in spec.outliers:
        hit = np.exp(-((np.arange(num_steps) - step + 2.0) ** 2) / 12)
        weight = rng.random(len(names)) * (rng.random(len(names)) < 0.6)
        norm *= np.exp(6 * np.outer(hit, weight))
    for step, fault in spec.faults.items():
        if step < num_steps:
            norm[step, [name in fault["tensors"] for name in names]] *= 300.0
    blocks = np.full((num_steps, len(QUANTITIES), len(names)), np.nan)
    gamma = norm[0].copy()
    first, second = np.zeros(len(names)), np.zeros(len(names))
    for step in range(num_steps):
        if spec.method == "AdaGC":
            clipped = np.minimum(norm[step], 1.04 * gamma)
            gamma = 0.9 * gamma + 0.1 * clipped
            blocks[step, 2] = gamma
        else:
            clipped = norm[step] * min(1, 1 / np.linalg.norm(norm[step]))
        first = 0.9 * first + 0.1 * clipped
        second = 0.999 * second + 0.001 * clipped**2
        blocks[step, [0, 1, 3, 4]] = norm[step], clipped, first, second
    return blocks


def make_directory(directory, **fields):
    """Write a calm run with other ``fields`` and read it back."""
    spec = types.SimpleNamespace(**(CALM | fields))
    names = tensor_names(spec.layers) if spec.layers else []
    loss = losses(spec)
    blocks = tensor_blocks(spec, names, len(loss)) if names else None
    writer = RunWriter(directory, names)
    adagc = spec.method == "AdaGC"
    clip = {"name": "global_norm", "lambda_abs": 1.0}
    if adagc:
        clip = {"name": "adagc", "lambda_abs": 1.0, "beta": 0.9, "t_start": 20}
    for step, value in enumerate(loss):
        metrics = {
            "step": step,
            "loss": float(value),
            "clip_seconds": 0.0012 if adagc else 0.0005,
            "step_seconds": 0.025,
            "clipped_fraction": 0.5 if adagc else 0.0,
        }
        if step == len(loss) - 1 and spec.nan_from is None:
            metrics["eval_loss"] = spec.floor + 0.1
        if step in spec.faults:
            metrics["faults"] = [spec.faults[step]]
        writer.append(metrics, blocks[step] if names else None)
    writer.close()
    update_run_json(
        directory,
        config={"clip": clip, "optimizer": {"beta2": 0.999}, "seed": spec.seed},
        seed=spec.seed,
        versions={"paddlepaddle": "3.3.1", "python": "3.11.2"},
        machine={"num_cores": 2},
        status=spec.status,
        wall_seconds=spec.steps * 0.026,
    )
    return RunRecord.load(directory)


@pytest.fixture
def make_run(tmp_path):
    """``make_run(method=..., seed=..., ...)``: a run, calm but for these."""

    def make(**fields):
        spec = CALM | fields
        folder = f"{spec['method']}-seed{spec['seed']}"
        number = len(list(tmp_path.glob(f"{folder}*")))
        name = f"{folder}-{number}" if number else folder
        return make_directory(tmp_path / name, **fields)

    return make
