# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs with `train.precision: float8`."""

import numpy as np
import pytest
from core.parallel.ranks import run_on_ranks
from lab.train import runs
from lab.train.runs import pretrain, run

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.train.parse import parse_config


def make_values(output_dir, **changes):
    experts = {
        "num_hidden_layers": 2,
        "moe_num_experts": 4,
        "moe_correction_bias": True,
    }
    fixed = {"model": experts, "precision": "float8"}
    return runs.make_values(output_dir, **{**fixed, **changes})


def test_run_records_which_tensors_are_quantised(tmp_path):
    status, record = run(make_values(tmp_path))
    assert status == "finished"
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
    assert len(float8["not_quantized"]) == 9


def test_quantised_linears_can_be_chosen_with_float8_alone(tmp_path):
    values = make_values(tmp_path, max_steps=2)
    values["model"]["float8_linears"] = ["attention"]
    quantized = run(values)[1].run["float8"]["quantized"]
    assert len(quantized) == 8
    assert all("self_attn" in name for name in quantized)
    values["train"]["precision"] = "float32"
    with pytest.raises(ValueError, match="precision='float32'"):
        parse_config(values)


@pytest.mark.slow
def test_all_stages_of_a_pipeline_are_recorded(tmp_path):
    parts = {"gradient_accumulation_steps": 2, "record": {"tensors": False}}
    _, alone = run(make_values(tmp_path / "alone", **parts))
    values = make_values(tmp_path / "pp2", parallel={"pp": 2}, **parts)
    run_on_ranks(pretrain, 2, values=values)
    record = RunRecord.load(tmp_path / "pp2")
    assert record.run["float8"] == alone.run["float8"]
    np.testing.assert_allclose(record.loss, alone.loss, rtol=1e-5)
