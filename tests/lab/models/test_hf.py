# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Logits equal Hugging Face transformers' (golden/, see make_golden.py)."""

import json
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.families import FAMILIES
from paddle_adagc.lab.models.hf import hf_tensors, state_from_hf, state_to_hf
from paddle_adagc.lab.models.hf_config import config_from_hf

GOLDEN = Path(__file__).parent / "golden"


def load(family):
    with np.load(GOLDEN / f"{family}.npz") as file:
        arrays = dict(file)
    options = json.loads(str(arrays.pop("config")))
    weights = {
        key.removeprefix("weight:"): arrays.pop(key)
        for key in list(arrays)
        if key.startswith("weight:")
    }
    return options, weights, arrays["input_ids"], arrays["logits"]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family):
    options, weights, input_ids, expected = load(family)
    config = config_from_hf(options)
    model = DecoderForCausalLM(config)
    missing, unexpected = model.set_state_dict(
        state_from_hf(weights, config, FAMILIES[family])
    )
    assert not missing
    assert not unexpected
    model.eval()
    logits = model(paddle.to_tensor(input_ids)).numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    assert expected.std() > 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_names_cover_the_checkpoint_once(family):
    options, weights, _, _ = load(family)
    tensors = hf_tensors(config_from_hf(options), FAMILIES[family])
    names = [tensor.name for tensor in tensors.values()]
    assert len(set(names)) == len(names)
    assert set(names) == weights.keys()


def test_ernie_config():
    options, _, _, _ = load("ernie4_5_moe")
    config = config_from_hf(options)
    assert config.moe_layers == [1]
    assert config.rope_layout == "interleaved"
    assert config.rope_theta == 500000.0
    assert config.moe_correction_bias
    options.update(num_hidden_layers=6, moe_layer_interval=2)
    options.update(moe_layer_start_index=2, moe_layer_end_index=-1)
    assert config_from_hf(options).moe_layers == [3, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type='yarn'"),
        ({"rope_parameters": {}}, "no rope_theta"),
    ],
)
def test_refuses_other_models(change, message):
    options, _, _, _ = load("llama")
    with pytest.raises(ValueError, match=message):
        config_from_hf({**options, **change})


def test_old_configs_hold_rope_theta_themselves():
    options, _, _, _ = load("llama")
    del options["rope_parameters"]
    assert config_from_hf({**options, "rope_theta": 5e4}).rope_theta == 5e4


def test_refuses_a_checkpoint_that_does_not_fit():
    options, weights, _, _ = load("llama")
    weights["surplus"] = weights.pop("model.norm.weight")
    with pytest.raises(ValueError, match=r"model\.norm\.weight.*surplus"):
        state_from_hf(weights, config_from_hf(options), FAMILIES["llama"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_goes_out_as_it_came_in(family):
    options, weights, _, _ = load(family)
    config = config_from_hf(options)
    exported = dict(
        state_to_hf(state_from_hf(weights, config, FAMILIES[family]), config)
    )
    assert exported.keys() == weights.keys()
    for name, array in weights.items():
        assert exported[name].flags["C_CONTIGUOUS"]
        np.testing.assert_array_equal(exported[name], array, name)


def test_refuses_weights_that_do_not_fit():
    options, weights, _, _ = load("llama")
    config = config_from_hf(options)
    state = state_from_hf(weights, config, FAMILIES["llama"])
    state["surplus"] = state.pop("lm_head.weight")
    with pytest.raises(ValueError, match=r"missing \['lm_head.*surplus"):
        dict(state_to_hf(state, config))


def test_a_tied_head_that_is_there_all_the_same_is_left_out():
    options, weights, _, _ = load("qwen3")
    config = config_from_hf(options)
    embedding = weights["model.embed_tokens.weight"]
    state = state_from_hf(
        {**weights, "lm_head.weight": embedding}, config, FAMILIES["qwen3"]
    )
    assert "lm_head.weight" not in state
    with pytest.raises(ValueError, match="lm_head"):
        state_from_hf(
            {**weights, "lm_head.weight": embedding + 1},
            config,
            FAMILIES["qwen3"],
        )


def test_rotary_frequencies_of_old_checkpoints_are_left_out():
    options, weights, _, _ = load("llama")
    config = config_from_hf(options)
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4)}
    state = state_from_hf(weights | old, config, FAMILIES["llama"])
    assert (
        state.keys() == state_from_hf(weights, config, FAMILIES["llama"]).keys()
    )
