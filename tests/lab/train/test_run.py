# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whole runs through PaddleNLP's Trainer: resume, faults, logs."""

import numpy as np
import pytest
from lab.train import runs

from paddle_adagc.lab.train.console import summarise_run


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
    assert (record.tensors["moment2"] > 0).all()
    assert record.run["data"]["num_files"] > 100
    assert record.run["wall_seconds"] > 0


SCALED_HEAD = {
    "kind": "gradient_scale",
    "tensor": "lm_head.weight",
    "magnitude": 1e4,
}
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
    values = runs.make_values("", save_every=4, eval_every=6)
    values["clip"] = {"name": clip}
    if model:
        values["model"] |= model
        values["train"] |= {"batch_size": 1, "expert_bias_rate": 0.01}
    values["faults"] = [{"kind": "random_tokens", "start": 3, "every": 2}]
    whole = runs.run_whole_and_cut(values, tmp_path)
    if model:  # 32 assignments of 16 tokens to 12 experts
        violation = whole.metrics["expert_max_violation"]
        assert (violation > 0).all()
        assert (violation <= 16 / (32 / 12) - 1).all()
        assert whole.metrics["idle_experts"].max() > 0


@pytest.mark.parametrize("tensors", [True, False])
def test_faults_are_injected_and_recorded(tmp_path, tensors):
    faults = [
        {"kind": "random_tokens", "steps": [6]},
        {**SCALED_HEAD, "steps": [8]},
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
    rows = runs.rows_of(tmp_path)
    assert [row["step"] for row in rows if "most_clipped" in row] == [8, 11]
    name, h = next(iter(rows[8]["most_clipped"].items()))
    assert name == "lm_head.weight"
    assert h < 1e-3
    assert record.faults[9][0]["tensors"] == [
        "model.layers.0.mlp.up_proj.weight"
    ]
    assert np.isfinite(record.loss).all()
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
    assert ending.lines[-1].startswith("the loss is not finite any more")


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("train", {"precision": "bfloat16"}, "precision=bfloat16"),
        ("data", {"seq_length": 10**5}, r"data\.seq_length=100000 is above"),
        ("model", {"vocab_size": 100}, "vocab_size=100"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, section, value, message):
    values = runs.make_values(tmp_path)
    values[section] |= value
    with pytest.raises(ValueError, match=message):
        runs.run(values)


def test_weights_that_are_nan_are_not_saved(tmp_path):
    changes = {"clip": {"name": "global_norm"}, "faults": runs.nan_at(2)}
    train = {"log_every": 6, "save_every": 2, "keep_checkpoints": 1}
    values = runs.make_values(tmp_path, **train, **changes)
    status, record = runs.run(values)
    assert (status, record.num_steps) == ("diverged", 4)
    assert runs.checkpoint_names(tmp_path) == ["checkpoint-2"]
    assert runs.run(values)[0] == "diverged"
