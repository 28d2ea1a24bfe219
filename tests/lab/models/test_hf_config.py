# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.hf_config import (
    config_from_hf,
    config_to_hf,
    family_of,
)
from paddle_adagc.lab.models.presets import PRESETS, preset

MIXTRAL = {"moe_num_experts": 4}
ERNIE = {
    "moe_num_experts": 6,
    "moe_top_k": 3,
    "moe_correction_bias": True,
    "rope_layout": "interleaved",
    "num_hidden_layers": 9,
}


def options_of(config):
    return {name: getattr(config, name) for name in config.field_names()}


@pytest.mark.parametrize(
    ("fields", "family"),
    [
        ({}, "llama"),
        ({"head_dim": 32, "num_key_value_heads": 2}, "llama"),
        ({"qk_norm": True, "tie_word_embeddings": True}, "qwen3"),
        ({**MIXTRAL, "router_aux_loss_coef": 0.1}, "mixtral"),
        ({**ERNIE, "moe_num_shared_experts": 2}, "ernie4_5_moe"),
        ({**ERNIE, "moe_layers": [8]}, "ernie4_5_moe"),
        ({**ERNIE, "moe_layers": [3, 5, 7]}, "ernie4_5_moe"),
        ({**ERNIE, "moe_layers": [2, 5, 8]}, "ernie4_5_moe"),
        ({**ERNIE, "router_aux_loss_coef": 0.1}, "ernie4_5_moe"),
    ],
)
def test_configs_come_back(fields, family):
    config = DecoderConfig(**fields)
    assert family_of(config).model_type == family
    exported = config_to_hf(config)
    assert exported["model_type"] == family
    assert options_of(config_from_hf(exported)) == options_of(config)


@pytest.mark.parametrize("name", PRESETS)
def test_the_paper_s_models_come_back(name):
    config = preset(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exported = config_to_hf(config)
    assert options_of(config_from_hf(exported)) == options_of(config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_layout": "interleaved"}, "rope_layout='interleaved'"),
        ({**MIXTRAL, "qk_norm": True}, "qk_norm=True.*Mixtral"),
        ({**MIXTRAL, "moe_layers": [0]}, r"moe_layers=\[0\].*every layer"),
        ({**MIXTRAL, "moe_norm_topk_prob": False}, "moe_norm_topk_prob=False"),
        ({**ERNIE, "moe_correction_bias": False}, "moe_correction_bias=False"),
        ({**ERNIE, "rope_layout": "half"}, "rope_layout='half'"),
        ({**ERNIE, "moe_layers": [1, 2, 5]}, r"moe_layers=\[1, 2, 5\]"),
        ({**ERNIE, "moe_layers": []}, r"moe_layers=\[\]"),
    ],
)
def test_refuses_what_transformers_has_not(fields, message):
    with pytest.raises(ValueError, match=message):
        config_to_hf(DecoderConfig(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**MIXTRAL, "router_z_loss_coef": 0.01}, "do not depend on"),
        ({"float8_linears": ["mlp"]}, "rounding to FP8"),
    ],
)
def test_says_what_is_left_out(fields, message):
    with pytest.warns(UserWarning, match=message):
        config_to_hf(DecoderConfig(**fields))


@pytest.mark.parametrize(
    ("fields", "changes", "message"),
    [
        ({}, {"rope_scaling": {"type": "linear", "factor": 8}}, "'linear'"),
        ({}, {"rope_scaling": [1]}, r"rope_scaling=\[1\]"),
        (ERNIE, {"moe_norm_min": 0.9}, r"moe_norm_min=0\.9"),
    ],
)
def test_refuses_what_the_decoder_has_not(fields, changes, message):
    exported = config_to_hf(DecoderConfig(**fields)) | changes
    if "rope_scaling" in changes:
        del exported["rope_parameters"]
    with pytest.raises(ValueError, match=message):
        config_from_hf(exported)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, "rms_norm_eps"),
        ({}, "vocab_size"),
        (MIXTRAL, "router_aux_loss_coef"),
        (ERNIE, "moe_k"),
    ],
)
def test_names_what_a_config_lacks(fields, key):
    exported = config_to_hf(DecoderConfig(**fields))
    del exported[key]
    with pytest.raises(ValueError, match=f"holds no {key}: add it"):
        config_from_hf(exported)


def test_what_transformers_leaves_out_has_its_default():
    for fields, is_tied in (({}, False), (ERNIE, True)):
        exported = config_to_hf(DecoderConfig(**fields))
        del exported["tie_word_embeddings"]
        assert config_from_hf(exported).tie_word_embeddings is is_tied
    exported = config_to_hf(DecoderConfig(qk_norm=True))
    del exported["head_dim"]
    assert config_from_hf(exported).head_dim == 128
