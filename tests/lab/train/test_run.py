# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whole runs through PaddleNLP's Trainer: faults, FP8, logs."""

import numpy as np
import pytest
from adagc_lab.train.console import summarise_run
from lab.train import runs


def test_run_leaves_a_complete_record(tmp_path):
    status, record = runs.run(runs.make_values(tmp_path, eval_every=4))
    assert status == record.run["status"] == "finished"
    assert record.num_steps == 12
    assert record.loss[-1] < record.loss[0] - 0.5
    assert runs.evaluated(record)[0] == [3, 7, 11]
    np.testing.assert_allclose(
        record.metrics["learning_rate"][:3], [0.005, 0.01, 0.01]
    )
    norm = np.sqrt((record.tensors["norm"].astype(float) ** 2).sum(1))
    np.testing.assert_allclose(
        norm, record.metrics["global_grad_norm"], rtol=1e-6
    )
    gamma = record.tensors["gamma"]
    assert (np.diff(gamma[:5], axis=0) <= 0).all()
    square = record.tensors["moment2"].astype(float)
    assert (square > 0).all()
    total = record.metrics["second_moment_root"] ** 2  # of positive numbers
    assert (total > 0.999 * np.sqrt((square**2).sum(1))).all()
    assert (total < 0.1 * norm.max() ** 2).all()
    update = record.metrics["update_norm"]
    assert (update > 0).all()
    np.testing.assert_allclose(update[1] / update[0], 2, rtol=0.3)
    assert record.run["data"]["num_files"] > 100
    assert record.run["wall_seconds"] > 0


@pytest.mark.parametrize("tensors", [True, False])
def test_faults_are_injected_recorded_and_summarised(tmp_path, tensors):
    scaled = {"kind": "gradient_scale", "magnitude": 1e4}
    faults = [
        {"kind": "random_tokens", "steps": [6]},
        {**scaled, "tensor": "lm_head.weight", "steps": [8]},
        *runs.nan_at(9, tensor="*mlp.up_proj*"),
    ]
    changes = {"faults": faults, "record": {"tensors": tensors}}
    values = runs.make_values(tmp_path, log_every=9, **changes)
    _, record = runs.run(values)
    assert {step: row[0]["kind"] for step, row in record.faults.items()} == {
        6: "random_tokens",
        8: "gradient_scale",
        9: "gradient_nan",
    }
    assert record.faults[9][0]["tensors"] == [
        "model.layers.0.mlp.up_proj.weight"
    ]
    assert np.isfinite(record.loss).all()
    ending = summarise_run(tmp_path)
    assert ending.is_sound
    text = "\n".join(ending.lines)
    assert text.startswith("finished: 12 steps in 00:0")
    assert f"loss: first {record.loss[0]:.4g}, " in text
    assert ending.lines[-1] == f"next: adagc-report {tmp_path}"
    if not tensors:
        return
    head = record.tensor_names.index("lm_head.weight")
    norm = record.tensors["norm"][:, head]
    assert norm[8] > 100 * norm[7]
    assert record.tensors["clipped_norm"][8, head] < 1.1 * norm[:8].max()
    assert record.metrics["nonfinite"][9] == 1


def test_run_that_diverges_ends_with_its_record(tmp_path):
    changes = {"clip": {"name": "global_norm"}, "faults": runs.nan_at(4)}
    values = runs.make_values(tmp_path, max_steps=40, **changes)
    status, record = runs.run(values)
    assert status == record.run["status"] == "diverged"
    assert np.isnan(record.loss[5])
    assert record.num_steps == 6
    ending = summarise_run(tmp_path)
    assert not ending.is_sound
    assert ending.lines[0].startswith("diverged: 6 steps")
    assert ending.lines[-3].startswith("problem: the loss is not finite")


def test_weights_that_are_nan_are_not_saved(tmp_path):
    changes = {"clip": {"name": "global_norm"}, "faults": runs.nan_at(2)}
    train = {"log_every": 6, "save_every": 2, "keep_checkpoints": 1}
    values = runs.make_values(tmp_path, **train, **changes)
    status, record = runs.run(values)
    assert (status, record.num_steps) == ("diverged", 4)
    assert runs.checkpoint_names(tmp_path) == ["checkpoint-2"]
    assert runs.run(values)[0] == "diverged"
