# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whole runs through PaddleNLP's Trainer: resume, faults, logs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from lab.train.interruption import interrupted_at
from lab.train.runs import assert_same, make_values, run

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.train.checkpoints import last_checkpoint

ROOT = Path(__file__).parents[3]


def test_run_leaves_a_complete_record(tmp_path):
    status, record = run(make_values(tmp_path, eval_every=4))
    assert status == record.run["status"] == "finished"
    assert record.num_steps == 12
    assert record.loss[-1] < record.loss[0] - 0.5
    evaluated = np.flatnonzero(np.isfinite(record.metrics["eval_loss"]))
    np.testing.assert_array_equal(evaluated, [3, 7, 11])
    np.testing.assert_allclose(
        record.metrics["learning_rate"][:3], [0.005, 0.01, 0.01]
    )
    norm = np.sqrt((record.tensors["norm"].astype(float) ** 2).sum(1))
    np.testing.assert_allclose(
        norm, record.metrics["global_grad_norm"], rtol=1e-6
    )
    gamma = record.tensors["gamma"]
    assert (np.diff(gamma[:5], axis=0) <= 0).all()
    assert (record.tensors["moment2"] > 0).all()
    assert record.run["data"]["num_files"] > 100
    assert record.run["wall_seconds"] > 0


# With 16 tokens a step, some of the experts get none.
EXPERTS = {
    "moe_num_experts": 12,
    "moe_intermediate_size": 8,
    "moe_num_shared_experts": 1,
    "moe_correction_bias": True,
    "router_aux_loss_coef": 0.01,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clip", "model"),
    [
        ("adagc", {}),
        ("global_norm", {}),
        ("global_adagc", {}),
        ("adagc", EXPERTS),
    ],
)
def test_stopped_and_resumed_run_has_the_same_record(tmp_path, clip, model):
    values = make_values(tmp_path / "whole", save_every=4, eval_every=6)
    values["clip"] = {"name": clip}
    if model:
        values["model"] |= model
        values["train"] |= {"batch_size": 1, "expert_bias_rate": 0.01}
    values["faults"] = [{"kind": "random_tokens", "start": 3, "every": 2}]
    _, whole = run(values)
    values["train"]["output_dir"] = str(tmp_path / "stopped")

    with interrupted_at(10):
        run(values)
    assert last_checkpoint(tmp_path / "stopped").name == "checkpoint-8"
    _, resumed = run(values)
    assert_same(whole, resumed)
    if model:  # 32 assignments of 16 tokens to 12 experts
        violation = whole.metrics["expert_max_violation"]
        assert (violation > 0).all()
        assert (violation <= 16 / (32 / 12) - 1).all()
        assert whole.metrics["idle_experts"].max() > 0


@pytest.mark.slow
@pytest.mark.long
def test_killed_at_random_moments_and_resumed(tmp_path):
    """SIGKILL real processes, while they train and while they save."""
    values = make_values(tmp_path / "whole", max_steps=60, save_every=2)
    _, whole = run(values)
    values["train"]["output_dir"] = str(tmp_path / "killed")
    config_file = tmp_path / "run.json.yaml"
    config_file.write_text(json.dumps(values))
    command = [
        sys.executable,
        "-m",
        "paddle_adagc.lab.cli.pretrain",
        str(config_file),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    rng = np.random.default_rng(0)
    metrics = tmp_path / "killed/metrics.jsonl"
    for kill in range(4):
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        goal = 8 + 12 * kill
        while process.poll() is None:
            time.sleep(0.005)
            if metrics.exists() and (metrics.read_bytes().count(b"\n") >= goal):
                time.sleep(rng.uniform(0, 0.2))
                break
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert RunRecord.load(tmp_path / "killed").run["status"] == "running"
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert_same(whole, RunRecord.load(tmp_path / "killed"))


def test_gradient_accumulation_is_one_large_batch(tmp_path):
    values = make_values(tmp_path / "large", batch_size=8)
    _, large = run(values)
    values = make_values(
        tmp_path / "accumulated", batch_size=4, gradient_accumulation_steps=2
    )
    _, accumulated = run(values)
    np.testing.assert_allclose(large.loss, accumulated.loss, rtol=1e-4)
    np.testing.assert_allclose(
        large.tensors["gamma"], accumulated.tensors["gamma"], rtol=1e-2
    )


def test_faults_are_injected_and_recorded(tmp_path):
    values = make_values(tmp_path)
    values["faults"] = [
        {"kind": "repeated_token", "steps": [6], "token": 7},
        {
            "kind": "gradient_scale",
            "steps": [8],
            "tensor": "lm_head.weight",
            "magnitude": 1e4,
        },
        {"kind": "gradient_nan", "steps": [9], "tensor": "*mlp.up_proj*"},
        {"kind": "activation_scale", "steps": [10], "magnitude": 10.0},
    ]
    _, record = run(values)
    assert {step: row[0]["kind"] for step, row in record.faults.items()} == {
        6: "repeated_token",
        8: "gradient_scale",
        9: "gradient_nan",
        10: "activation_scale",
    }
    head = record.tensor_names.index("lm_head.weight")
    norm = record.tensors["norm"][:, head]
    assert norm[8] > 100 * norm[7]
    assert record.tensors["clipped_norm"][8, head] < 1.1 * norm[:8].max()
    assert record.metrics["nonfinite"][9] == 1
    assert record.faults[9][0]["tensors"] == [
        "model.layers.0.mlp.up_proj.weight"
    ]
    assert len(record.faults[10][0]["tensors"]) == 1
    assert np.isfinite(record.loss).all()


def test_loss_of_a_corrupted_activation_is_no_divergence(tmp_path):
    values = make_values(tmp_path)
    values["faults"] = [{"kind": "activation_nan", "steps": [3]}]
    status, record = run(values)
    assert status == "finished"
    assert np.flatnonzero(~np.isfinite(record.loss)).tolist() == [3]
    assert record.num_steps == 12


def test_run_that_diverges_ends_with_its_record(tmp_path):
    values = make_values(tmp_path, max_steps=40)
    values["clip"] = {"name": "global_norm"}
    values["faults"] = [{"kind": "gradient_nan", "steps": [4]}]
    status, record = run(values)
    assert status == record.run["status"] == "diverged"
    assert np.isnan(record.loss[5])
    assert record.num_steps == 6


def test_mixture_of_experts_trains_and_balances(tmp_path):
    values = make_values(tmp_path, expert_bias_rate=0.01, save_every=6)
    values["model"] |= EXPERTS | {"moe_num_experts": 4}
    _, record = run(values)
    assert record.loss[-1] < record.loss[0] - 0.3
    state = json.loads((tmp_path / "run.json").read_text())
    assert state["status"] == "finished"


@pytest.mark.parametrize("tensors", [True, False])
def test_log_lines_name_the_most_clipped_tensors(tmp_path, tensors):
    values = make_values(tmp_path, log_every=4)
    values["record"] = {"tensors": tensors}
    values["faults"] = [
        {
            "kind": "gradient_scale",
            "steps": [7],
            "tensor": "lm_head.weight",
            "magnitude": 1e4,
        }
    ]
    run(values)
    rows = [
        json.loads(line)
        for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows if "most_clipped" in row] == [3, 7, 11]
    name, h = next(iter(rows[7]["most_clipped"].items()))
    assert name == "lm_head.weight"
    assert h < 1e-3
    assert rows[7]["global_grad_norm"] > 100 * rows[3]["global_grad_norm"]


def test_low_precision_without_a_gpu_is_refused(tmp_path):
    with pytest.raises(ValueError, match="precision=bfloat16"):
        run(make_values(tmp_path, precision="bfloat16"))


def test_sequences_that_are_too_long_are_refused(tmp_path):
    values = make_values(tmp_path)
    values["data"]["seq_length"] = 100_000
    with pytest.raises(ValueError, match=r"data\.seq_length=100000 is above"):
        run(values)


def test_vocabulary_that_is_too_small_is_refused(tmp_path):
    values = make_values(tmp_path)
    values["model"]["vocab_size"] = 100
    with pytest.raises(ValueError, match="vocab_size=100"):
        run(values)
