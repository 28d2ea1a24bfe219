# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs with `train.precision: float8`."""

import json
from pathlib import Path

import numpy as np
import pytest
from core.parallel.ranks import run_on_ranks
from lab.train.interruption import interrupted_at
from lab.train.runs import pretrain

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.train.parse import load_config, parse_config

CONFIGS = Path(__file__).parents[3] / "configs"


def make_values(output_dir, **train):
    return {
        "model": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "moe_num_experts": 4,
            "moe_layers": [1],
            "moe_correction_bias": True,
        },
        "data": {"seq_length": 16, "validation_size": 8},
        "schedule": {"learning_rate": 0.01, "warmup_steps": 2},
        "clip": {"name": "adagc", "t_start": 5},
        "record": {"tensors": True},
        "train": {
            "output_dir": str(output_dir),
            "precision": "float8",
            "max_steps": 12,
            "batch_size": 4,
            "log_every": 3,
            "visualdl": False,
            **train,
        },
    }


def run(values):
    pretrain(values)
    return RunRecord.load(values["train"]["output_dir"])


def test_run_records_which_tensors_are_quantised(tmp_path):
    record = run(make_values(tmp_path))
    assert record.run["status"] == "finished"
    assert record.loss[-1] < record.loss[0] - 0.3
    float8 = record.run["float8"]
    assert float8["backend"] == "emulated"
    assert sorted(float8["quantized"] + float8["not_quantized"]) == sorted(
        record.tensor_names
    )
    layer = "model.layers.1.mlp"
    for name in ("experts.3.down_proj", "experts.0.gate_proj"):
        assert f"{layer}.{name}.weight" in float8["quantized"]
    assert f"{layer}.gate.weight" in float8["not_quantized"]
    assert len(float8["not_quantized"]) == 8


def test_float32_has_the_same_start_and_other_losses(tmp_path):
    float8 = run(make_values(tmp_path / "8"))
    float32 = run(make_values(tmp_path / "32", precision="float32"))
    assert "float8" not in float32.run
    gap = float8.loss - float32.loss
    assert (gap != 0).all()
    assert np.abs(gap).max() < 0.1


def test_quantised_linears_can_be_chosen(tmp_path):
    values = make_values(tmp_path, max_steps=2)
    values["model"]["float8_linears"] = ["attention"]
    quantized = run(values).run["float8"]["quantized"]
    assert len(quantized) == 8
    assert all("self_attn" in name for name in quantized)


def test_chosen_linears_without_float8_are_refused(tmp_path):
    values = make_values(tmp_path, precision="float32")
    values["model"]["float8_linears"] = ["attention"]
    with pytest.raises(ValueError, match="precision='float32'"):
        parse_config(values)


def test_stopped_and_resumed_run_has_the_same_losses(tmp_path):
    values = make_values(tmp_path / "whole", save_every=4)
    whole = run(values)
    values["train"]["output_dir"] = str(tmp_path / "stopped")
    with interrupted_at(10):
        run(values)
    resumed = run(values)
    np.testing.assert_array_equal(whole.loss, resumed.loss)
    np.testing.assert_array_equal(
        whole.tensors["gamma"], resumed.tensors["gamma"]
    )


def test_accumulated_micro_batches_are_quantised_on_their_own(tmp_path):
    """Other blocks of tokens than in one batch, so nearly the same losses."""
    large = run(make_values(tmp_path / "large", batch_size=8))
    parts = run(
        make_values(
            tmp_path / "parts", batch_size=4, gradient_accumulation_steps=2
        )
    )
    assert large.loss[0] == pytest.approx(parts.loss[0], rel=1e-6)
    np.testing.assert_allclose(large.loss, parts.loss, rtol=2e-2)


@pytest.mark.slow
def test_all_stages_of_a_pipeline_are_recorded(tmp_path):
    alone = run(make_values(tmp_path / "alone", gradient_accumulation_steps=2))
    values = make_values(tmp_path / "pp2", gradient_accumulation_steps=2)
    values |= {"parallel": {"pp": 2}, "record": {"tensors": False}}
    run_on_ranks(pretrain, 2, values=values)
    record = RunRecord.load(tmp_path / "pp2")
    assert record.run["float8"] == alone.run["float8"]
    np.testing.assert_allclose(record.loss, alone.loss, rtol=1e-5)


def test_the_proxy_s_config_is_the_ernie_proxy_in_float8():
    float8 = load_config(CONFIGS / "proxy" / "ernie_moe_fp8.yaml").to_dict()
    base = load_config(CONFIGS / "proxy" / "ernie_moe.yaml").to_dict()
    assert float8["train"].pop("precision") == "float8"
    base["train"].pop("precision")
    float8["train"].pop("output_dir")
    base["train"].pop("output_dir")
    assert json.dumps(float8) == json.dumps(base)
