# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scaled Embed and WeSaR: what is drawn, what multiplies it, what is saved."""

import numpy as np
import paddle
import pytest

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.hf import (
    config_from_hf,
    config_to_hf,
    folded_tensors,
    state_from_hf,
    state_to_hf,
)
from paddle_adagc.lab.models.initialization import plain_config
from paddle_adagc.lab.models.rank_weights import load_weights

HIDDEN, LAYERS = 128, 3
SIZES = {
    "vocab_size": 300,
    "hidden_size": HIDDEN,
    "intermediate_size": 200,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MOE = {
    "moe_num_experts": 4,
    "moe_num_shared_experts": 1,
    "moe_intermediate_size": 64,
    "moe_layers": [1],
    "moe_correction_bias": True,
    "rope_layout": "interleaved",
}
TIED = {"qk_norm": True, "tie_word_embeddings": True}
TOKENS = paddle.to_tensor(np.arange(24).reshape(2, 12) * 7 % 300)


def build(initialization, **options):
    paddle.seed(1)
    return DecoderForCausalLM(
        DecoderConfig(initialization=initialization, **{**SIZES, **options})
    )


def arrays(model):
    return {key: value.numpy() for key, value in model.state_dict().items()}


def assert_normal(values, deviation, name):
    """Moments of normal values to five of their standard errors."""
    values = values.astype(np.float64).reshape(-1) / deviation
    error = 5 / np.sqrt(values.size)
    assert abs(values.mean()) < error, name
    assert abs(values.std() - 1) < error / np.sqrt(2), name
    assert abs((values**4).mean() / 3 - 1) < error * np.sqrt(96) / 3, name


@pytest.mark.parametrize("options", [{}, MOE, TIED])
@pytest.mark.parametrize("initialization", ["normal", "scaled_embed"])
def test_deviations_of_the_weights(initialization, options):
    is_small = initialization == "scaled_embed"
    deviation = np.sqrt(2 / (5 * HIDDEN)) if is_small else 0.02
    for name, value in arrays(build(initialization, **options)).items():
        if value.ndim == 2:
            is_output = "o_proj" in name or "down_proj" in name
            scale = np.sqrt(1 / (2 * LAYERS)) if is_output * is_small else 1.0
            assert_normal(value, deviation * scale, name)


@pytest.mark.parametrize("options", [{}, MOE])
def test_wesar_draws_equal_weights_and_targets_are_those_of_alpha(options):
    targets = {
        "embed_tokens": 1.0,
        "o_proj": np.sqrt(1 / (2 * LAYERS * HIDDEN)),
        "down_proj": np.sqrt(2 / (8 * LAYERS * HIDDEN)),
    }
    state = arrays(build("wesar", **options))
    matrices = [name for name, value in state.items() if value.ndim == 2]
    for name in matrices:
        assert_normal(state[name], np.sqrt(4e-5), name)
        alpha = state[name.replace(".weight", ".alpha")]
        target = targets.get(name.split(".")[-2], np.sqrt(1 / HIDDEN))
        np.testing.assert_allclose(
            alpha * np.sqrt(4e-5), [target], rtol=1e-6, err_msg=name
        )
    assert sum("alpha" in name for name in state) == len(matrices)


def trained(initialization, **options):
    """A model whose scales and norms are no longer those of the start."""
    model = build(initialization, **options)
    draw = np.random.default_rng(0)
    for name, parameter in model.named_parameters():
        if name.endswith(("alpha", "norm.weight")):
            factor = draw.uniform(0.5, 2, parameter.shape).astype("float32")
            parameter.set_value(parameter.numpy() * factor)
    model.eval()
    return model


EQUAL = [("scaled_embed", {}), ("scaled_embed", TIED), ("scaled_embed", MOE)]
EQUAL += [("wesar", {}), ("wesar", MOE)]


@pytest.mark.parametrize(("initialization", "options"), EQUAL)
def test_plain_and_exported_models_compute_the_same(initialization, options):
    model = trained(initialization, **options)
    got = model(TOKENS).numpy()
    size = np.abs(got).max()

    def gap_of(config, state):
        other = DecoderForCausalLM(config)
        assert state.keys() == other.state_dict().keys()
        load_weights(other, state)
        other.eval()
        return np.abs(other(TOKENS).numpy() - got).max() / size

    plain = plain_config(model.config)
    folded = dict(folded_tensors(arrays(model), model.config))
    assert gap_of(plain, folded) < 2e-6
    # Without the multipliers it is another model.
    bare = {key: arrays(model)[key] for key in folded}
    assert gap_of(plain, bare) > 0.1

    exported = state_to_hf(arrays(model), model.config)
    assert not [name for name in exported if "alpha" in name]
    config = config_from_hf(config_to_hf(model.config))
    assert gap_of(config, state_from_hf(exported, config)) < 2e-6


def test_folding_rounds_once_to_the_weight_s_dtype():
    model = build("scaled_embed")
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    name = "model.embed_tokens.weight"
    state = {k: v.astype(bfloat16) for k, v in arrays(model).items()}
    folded = dict(folded_tensors(state, model.config))
    exact = state[name].astype(np.float64) * np.sqrt(HIDDEN)
    assert folded[name].dtype == bfloat16
    np.testing.assert_array_equal(folded[name], exact.astype(bfloat16))
    assert folded["lm_head.weight"] is state["lm_head.weight"]


def test_fp8_products_do_not_see_the_scales():
    float8 = {"float8_linears": ["attention", "mlp"]}
    model = build("wesar", **float8)
    layer = model.model.layers[0].self_attn.q_proj
    x = paddle.randn([5, HIDDEN])
    alpha = float(layer.alpha)
    bare = layer(x).numpy() / np.float32(alpha)
    layer.alpha.set_value(paddle.to_tensor([3.0]))
    np.testing.assert_allclose(layer(x).numpy() / 3, bare, rtol=1e-6)
