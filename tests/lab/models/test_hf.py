# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Configs and weights of Hugging Face transformers, both ways.

The golden files hold tiny checkpoints of random weights in the hub's naming
("weight:<name>"), the config as JSON ("config"), inputs, and the "logits" of
transformers 5.23. Where transformers is installed, it has to give them again.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import paddle
import pytest
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.models.families import preset
from adagc_lab.models.hf import (
    config_from_hf,
    config_to_hf,
    family_of,
    state_from_hf,
    state_to_hf,
)
from adagc_lab.models.hf_keys import FAMILIES
from helpers import load_golden
from safetensors.numpy import save_file
from transformers_twin import torch_and_transformers

GOLDEN = Path(__file__).parent / "golden"
CLIP = Path(__file__).parent / "vision_text/golden"


def load(family):
    return load_golden(GOLDEN / f"{family}.npz")


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_the_same_checkpoint_again(family):
    options, weights, arrays = load(family)
    config = config_from_hf(options)
    state = state_from_hf(weights, config)
    model = DecoderForCausalLM(config)
    missing, unexpected = model.set_state_dict(state)
    assert not missing
    assert not unexpected
    model.eval()
    expected = arrays["logits"]
    logits = model(paddle.to_tensor(arrays["input_ids"])).numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    assert expected.std() > 0.5
    exported = state_to_hf(state, config)
    assert exported.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(exported[name], array, name)


@pytest.mark.parametrize(
    "path", [*sorted(GOLDEN.iterdir()), CLIP / "clip.npz"], ids=lambda p: p.stem
)
def test_golden_logits_are_those_of_transformers(path, tmp_path):
    torch, transformers = torch_and_transformers()
    options, weights, arrays = load_golden(path)
    # Versions before 5 read rope_theta outside of rope_parameters.
    config = {**(options.get("rope_parameters") or {}), **options}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    kind = getattr(transformers, options["architectures"][0])
    expected = arrays.pop("logits")
    with torch.no_grad():
        found = kind.from_pretrained(tmp_path).eval()(
            **{name: torch.from_numpy(x) for name, x in arrays.items()}
        )
    name = "logits_per_image" if "pixel_values" in arrays else "logits"
    np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-4)


def test_golden_tokens_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    golden = json.loads((CLIP / "tokens.json").read_text())
    tokenizer = transformers.CLIPTokenizerFast(
        tokenizer_file=str(CLIP / "tokenizer.json")
    )
    length = golden["context"]
    rows = tokenizer(golden["captions"], truncation=True, max_length=length)
    assert rows["input_ids"] == golden["rows"]


def test_the_head_is_what_the_config_says():
    options, weights, _ = load("qwen3")
    config = config_from_hf({**options, "tie_word_embeddings": True})
    weights.pop("lm_head.weight", None)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4)
    embedding = weights["model.embed_tokens.weight"]
    copied = {**weights, "lm_head.weight": embedding}
    state = state_from_hf(weights, config)
    assert state_from_hf(copied, config).keys() == state.keys()
    assert not any("inv_freq" in name for name in state)
    differing = {**weights, "lm_head.weight": embedding + 1}
    with pytest.raises(ValueError, match=r"=true, but lm_head\.weight differs"):
        state_from_hf(differing, config)
    untied = config_from_hf({**options, "tie_word_embeddings": False})
    assert "lm_head.weight" in state_from_hf(copied, untied)
    with pytest.raises(ValueError, match=r"=false, .* hold no lm_head.weight"):
        state_from_hf(weights, untied)


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
    ("config", "family"),
    [
        (DecoderConfig(head_dim=32, num_key_value_heads=2), "llama"),
        (preset("llama2-7b"), "llama"),
        (preset("qwen3-1.7b"), "qwen3"),
        (preset("mixtral-8x1b"), "mixtral"),
        (preset("ernie-10b-a1.4b"), "ernie4_5_moe"),
        (DecoderConfig(**ERNIE, router_aux_loss_coef=0.1), "ernie4_5_moe"),
    ],
)
def test_configs_come_back(config, family):
    assert family_of(config).model_type == family
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exported = config_to_hf(config)
    assert exported["model_type"] == family
    assert options_of(config_from_hf(exported)) == options_of(config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_layout": "interleaved"}, "rope_layout='interleaved'"),
        ({"initialization": "wesar"}, "initialization='wesar'"),
        ({**MIXTRAL, "qk_norm": True}, "qk_norm=True.*Mixtral"),
        ({**ERNIE, "moe_correction_bias": False}, "moe_correction_bias=False"),
        ({**ERNIE, "rope_layout": "half"}, "rope_layout='half'"),
    ],
)
def test_refuses_what_transformers_has_not(fields, message):
    with pytest.raises(ValueError, match=message):
        config_to_hf(DecoderConfig(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"float8_linears": ["mlp"]}, "rounding to FP8"),
        ({"rms_norm_precision": "bfloat16"}, "bfloat16 .* rounding to bfl"),
    ],
)
def test_says_what_is_left_out(fields, message):
    with pytest.warns(UserWarning, match=message):
        options = config_to_hf(DecoderConfig(**fields))
    assert not fields.keys() & options.keys()


def test_refuses_other_models():
    for value in ("gpt2", None, 3):
        with pytest.raises(ValueError, match=f"model_type={value!r}: use one"):
            config_from_hf({"model_type": value})
