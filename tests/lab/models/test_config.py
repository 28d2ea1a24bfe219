# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""DecoderConfig and the presets: validation, round trip, counts."""

import pytest

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.presets import PRESETS, preset
from paddle_adagc.lab.models.sizes import (
    num_active_parameters,
    num_parameters,
    num_tensors,
    parameter_shapes,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        (
            {"num_hidden_layers": 2.0},
            "num_hidden_layers must be an integer, got 2.0",
        ),
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
        (
            {"num_attention_heads": "4"},
            "num_attention_heads must be an integer",
        ),
        ({"num_attention_heads": 6}, "give head_dim"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"head_dim": 7}, "head_dim=7"),
        (
            {"rope_layout": "neox"},
            "rope_layout must be one of half, interleaved; got 'neox'",
        ),
        ({"rope_theta": 0.0}, "rope_theta must be greater than 0, got 0.0"),
        (
            {"rms_norm_eps": float("nan")},
            "rms_norm_eps must be finite, got nan",
        ),
        (
            {"initializer_range": -0.1},
            "initializer_range must be at least 0, got -0.1",
        ),
        (
            {"initializer_range": float("inf")},
            "initializer_range must be finite, got inf",
        ),
        ({"moe_num_shared_experts": 1}, "give moe_num_experts"),
        ({"moe_layers": [0]}, "give moe_num_experts"),
        ({"moe_correction_bias": True}, "give moe_num_experts"),
        ({"moe_num_experts": 2, "moe_top_k": 3}, "moe_top_k=3"),
        (
            {"moe_num_experts": 2, "moe_top_k": 0},
            "moe_top_k must be at least 1, got 0",
        ),
        ({"moe_num_experts": 2, "moe_layers": [3]}, "moe_layers holds 3"),
        (
            {"router_z_loss_coef": -1.0},
            "router_z_loss_coef must be at least 0, got -1.0",
        ),
        ({"qk_norm": "yes"}, "qk_norm must be true or false, got 'yes'"),
    ],
)
def test_refuses_bad_values(options, message):
    with pytest.raises(ValueError, match=message):
        DecoderConfig(**options)


def test_derives_what_is_left_out():
    config = DecoderConfig(num_attention_heads=8, moe_num_experts=4)
    assert config.num_key_value_heads == 8
    assert config.head_dim == 8
    assert config.moe_intermediate_size == config.intermediate_size


def test_field_names_are_the_options_alone():
    names = DecoderConfig.field_names()
    assert names[0] == "vocab_size"
    assert "tie_word_embeddings" in names
    assert "moe_layers" in names
    assert not {"self", "kwargs", "dtype"} & set(names)


def test_layers_with_experts():
    config = DecoderConfig(moe_num_experts=4, moe_layers=[2, 1])
    assert [config.is_moe_layer(i) for i in range(3)] == [False, True, True]
    assert DecoderConfig(moe_num_experts=4).is_moe_layer(0)
    assert not DecoderConfig().is_moe_layer(0)


@pytest.mark.parametrize("name", PRESETS)
def test_round_trip_through_disk(name, tmp_path):
    config = preset(name, num_hidden_layers=2)
    config.save_pretrained(tmp_path)
    again = DecoderConfig.from_pretrained(str(tmp_path))
    for field in DecoderConfig.field_names():
        assert getattr(again, field) == getattr(config, field), field


def test_unknown_names_get_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'llama2-7b'"):
        preset("llama2_7b")
    with pytest.raises(ValueError, match="did you mean 'hidden_size'"):
        preset("llama2-7b", hiden_size=8)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("llama2-1.3b", 1.339e9, 1.274e9),
        ("llama2-7b", 6.738e9, 6.607e9),
        ("qwen3-1.7b", 1.721e9, 1.721e9),
        ("ernie-10b-a1.4b", 10.56e9, 1.448e9),
        ("mixtral-8x1b", 7.001e9, 1.953e9),
    ],
)
def test_counts_fit_the_names_of_the_paper(name, total, active):
    config = preset(name)
    assert num_parameters(config) == pytest.approx(total, rel=1e-3)
    assert num_active_parameters(config) == pytest.approx(active, rel=1e-3)


def test_mixtral_8x1b_has_eight_experts_of_a_1b_model():
    one = preset("mixtral-8x1b", moe_num_experts=0, router_aux_loss_coef=0.0)
    assert num_parameters(one) == pytest.approx(1.19e9, rel=0.01)


def test_ernie_tensors():
    config = preset("ernie-10b-a1.4b")
    layers, experts = config.num_hidden_layers, config.moe_num_experts
    assert num_tensors(config, routers=False) == 3828
    assert (9 + 3 * experts) * layers + 3 == 3828
    assert num_tensors(config) == 3828 + 25
    shapes = parameter_shapes(config)
    assert shapes["model.layers.24.mlp.experts.47.down_proj.weight"] == (
        1024,
        2560,
    )
    assert shapes["lm_head.weight"] == (2560, 103424)
