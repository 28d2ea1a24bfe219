# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How weights start, and what multiplies them."""

import numpy as np
import paddle
import pytest
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.decoder import DecoderForCausalLM

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


@pytest.mark.parametrize("options", [MOE, TIED])
@pytest.mark.parametrize("initialization", ["normal", "scaled_embed"])
def test_deviations_of_the_weights(initialization, options):
    is_small = initialization == "scaled_embed"
    deviation = np.sqrt(2 / (5 * HIDDEN)) if is_small else 0.02
    for name, value in arrays(build(initialization, **options)).items():
        if value.ndim == 2:
            is_output = "o_proj" in name or "down_proj" in name
            scale = np.sqrt(1 / (2 * LAYERS)) if is_output * is_small else 1.0
            assert_normal(value, deviation * scale, name)


def test_wesar_draws_equal_weights_and_targets_are_those_of_alpha():
    targets = {
        "embed_tokens": 1.0,
        "o_proj": np.sqrt(1 / (2 * LAYERS * HIDDEN)),
        "down_proj": np.sqrt(2 / (8 * LAYERS * HIDDEN)),
    }
    state = arrays(build("wesar", **MOE))
    matrices = [name for name, value in state.items() if value.ndim == 2]
    for name in matrices:
        assert_normal(state[name], np.sqrt(4e-5), name)
        alpha = state[name.replace(".weight", ".alpha")]
        target = targets.get(name.split(".")[-2], np.sqrt(1 / HIDDEN))
        np.testing.assert_allclose(
            alpha * np.sqrt(4e-5), [target], rtol=1e-6, err_msg=name
        )
    assert sum("alpha" in name for name in state) == len(matrices)


@pytest.mark.parametrize("initialization", ["scaled_embed", "wesar"])
def test_multipliers_are_those_of_weights(initialization):
    model = build(initialization, **MOE)
    draw = np.random.default_rng(0)
    for name, parameter in model.named_parameters():
        if name.endswith(("alpha", "norm.weight")):  # as after training
            factor = draw.uniform(0.5, 2, parameter.shape).astype("float32")
            parameter.set_value(parameter.numpy() * factor)
    model.eval()
    expected = model(TOKENS).numpy()
    state = arrays(model)
    embedding = "model.embed_tokens.weight"
    factors = {
        name.replace(".alpha", ".weight"): state.pop(name)
        for name in [*state]
        if name.endswith(".alpha")
    } or {embedding: np.float32(np.sqrt(HIDDEN))}

    plain = build("normal", **MOE)
    folded = {k: v * factors.get(k, np.float32(1)) for k, v in state.items()}
    assert plain.set_state_dict(folded) == ([], [])
    plain.eval()
    gap = np.abs(plain(TOKENS).numpy() - expected).max()
    assert gap < 2e-6 * np.abs(expected).max()
