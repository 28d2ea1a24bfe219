# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small whole runs, and how to compare them."""

import numpy as np

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.train.parse import parse_config
from paddle_adagc.lab.train.run import run_pretraining

MODEL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
SAME_EVERY_TIME = (
    "loss",
    "learning_rate",
    "global_grad_norm",
    "eval_loss",
    "expert_max_violation",
    "idle_experts",
)


def make_values(output_dir, **train):
    return {
        "model": dict(MODEL),
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
            **train,
        },
    }


def pretrain(values):
    """One process's part of a run."""
    return run_pretraining(parse_config(values))


def run(values):
    status = pretrain(values)
    return status, RunRecord.load(values["train"]["output_dir"])


def losses(output_dir):
    """Training losses of a finished run, then its validation losses."""
    record = RunRecord.load(output_dir)
    assert record.run["status"] == "finished"
    assert record.num_steps == record.run["config"]["train"]["max_steps"]
    evaluated = record.metrics["eval_loss"]
    return np.append(record.loss, evaluated[np.isfinite(evaluated)])


def assert_same(first, second):
    assert first.num_steps == second.num_steps
    for key in SAME_EVERY_TIME:
        np.testing.assert_array_equal(
            first.metrics.get(key), second.metrics.get(key), err_msg=key
        )
    for key, values in first.tensors.items():
        np.testing.assert_array_equal(values, second.tensors[key], key)
