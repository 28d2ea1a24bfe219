# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small whole runs: how to make, cut, compare them, and write one by hand."""

import contextlib
import json
import os
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
from adagc_lab.record.files import (
    RECORD,
    RunRecord,
    num_steps,
    update_run_json,
)
from adagc_lab.train.checkpoints import last_checkpoint
from adagc_lab.train.config import RunConfig
from adagc_lab.train.parse import (
    merged,
    parse_config,
    read_overrides,
    read_values,
)
from adagc_lab.train.recorder import StepRecorder
from adagc_lab.train.run import run_pretraining
from pages import ROOT

from paddle_adagc.watch.store import Store

CONFIGS = ROOT / "configs"
SECTIONS = {*RunConfig.model_fields}
SAME_EVERY_TIME = (
    "loss",
    "learning_rate",
    "global_grad_norm",
    "eval_loss",
    "retrieval_accuracy",
    "expert_max_violation",
    "idle_experts",
)


def nan_at(step, **where):
    """Faults of a run."""
    return [{"kind": "gradient_nan", "steps": [step], **where}]


def make_values(output_dir, **changes):
    """Values of a tiny decoder's run, with sections and keys of ``train``.

    Of ``model`` and ``data`` keys are changed, other sections are replaced.
    """
    sections = {k: changes.pop(k) for k in SECTIONS & changes.keys()}
    values = {
        "model": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        "data": {"seq_length": 16, "validation_size": 8},
        "schedule": {"learning_rate": 0.01, "warmup_steps": 2},
        "clip": {"name": "adagc", "t_start": 5},
        "record": {"tensors": True, "moments": True},
        "train": {
            "output_dir": str(output_dir),
            "max_steps": 12,
            "batch_size": 4,
            "log_every": 3,
            "visualdl": False,
            **changes,
        },
    }
    for name in ("model", "data"):
        values[name] |= sections.pop(name, {})
    return values | sections


def proxy_values(name, output_dir, *overrides):
    """Values of a proxy with overrides, as the command line takes them."""
    overrides = [f"train.output_dir={output_dir}", *overrides]
    values = read_values(CONFIGS / f"proxy/{name}.yaml")
    return merged(values, read_overrides(overrides))


def pretrain(values):
    """One process's part of a run."""
    return run_pretraining(parse_config(values))


def run(values):
    status = pretrain(values)
    return status, RunRecord.load(values["train"]["output_dir"])


def run_in(directory, values):
    """The record of a finished run in another directory."""
    values["train"]["output_dir"] = str(directory)
    status, record = run(values)
    assert status == record.run["status"] == "finished"
    return record


@contextlib.contextmanager
def losses_at(step, change):
    """Change what a run has as the loss of a step."""
    add_loss = StepRecorder.add_loss

    def changed(self, loss):
        is_here = self._row["samples"][0] == step * self._config.global_batch
        add_loss(self, change(loss) if is_here else loss)

    with mock.patch.object(StepRecorder, "add_loss", changed):
        yield


@contextlib.contextmanager
def interrupted_at(num_steps):
    """Expect and cause a Ctrl-C after so many steps of a run."""

    def interrupt(loss):
        raise KeyboardInterrupt

    with losses_at(num_steps, interrupt), pytest.raises(KeyboardInterrupt):
        yield


def run_whole_and_cut(values, tmp_path, at=10):
    """A run has the same record if it is cut after a step; return its own."""
    whole = run_in(tmp_path / "whole", values)
    values["train"]["output_dir"] = str(tmp_path / "cut")
    with interrupted_at(at):
        run(values)
    saved = at - at % values["train"]["save_every"]
    assert last_checkpoint(tmp_path / "cut").name == f"checkpoint-{saved}"
    assert_same(whole, run_in(tmp_path / "cut", values))
    return whole


def losses(output_dir):
    """Training losses of a finished run, then its validation losses."""
    record = RunRecord.load(output_dir)
    assert record.run["status"] == "finished"
    assert record.num_steps == record.run["config"]["train"]["max_steps"]
    return np.append(record.loss, evaluated(record)[1])


def evaluated(record):
    """Steps of a run's validations, and their losses."""
    values = record.metrics["eval_loss"]
    steps = np.flatnonzero(np.isfinite(values))
    return steps.tolist(), values[steps]


def assert_same(first, second):
    assert first.num_steps == second.num_steps
    for key in SAME_EVERY_TIME:
        np.testing.assert_array_equal(
            first.metrics.get(key), second.metrics.get(key), err_msg=key
        )
    for key, values in first.tensors.items():
        np.testing.assert_array_equal(values, second.tensors[key], key)


def checkpoint_names(directory):
    return sorted(path.name for path in directory.glob("checkpoint-*"))


def start(values, tmp_path, *launch, **options):
    """Start a command that trains; what it prints comes through a pipe."""
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(values))
    usual = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
        "text": True,
    }
    return subprocess.Popen(
        [sys.executable, *launch, str(ROOT / "tools/pretrain.py"), str(config)],
        **{**usual, **options},
    )


def wait_for_step(directory, step, process):
    while process.poll() is None:
        if num_steps(directory) >= step:
            return
        time.sleep(0.005)
    pytest.fail("the run ended too early")


def write_steps(directory, rows, names=(), tensors=None, start=0):
    """Write a session of a run's steps, and a ``run.json`` with the names.

    ``rows`` have all numbers but ``step``; ``tensors`` are norm, gamma and h,
    ``[num_steps, num_tensors]`` each.
    """
    if tensors is None and names:
        ones = np.ones((len(rows), len(names)), np.float32)
        tensors = dict.fromkeys(("norm", "gamma", "h"), ones)
    store = Store(directory / RECORD)
    store.begin(start + 1, {})
    numbered = [{**row, "step": i} for i, row in enumerate(rows, start + 1)]
    store.append(numbered, [*names], tensors)
    store.close()
    update_run_json(directory, tensors=[*names])
