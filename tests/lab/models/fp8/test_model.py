# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoders with FP8 linears: what goes through them, and training."""

import re

import numpy as np
import paddle
import pytest

from paddle_adagc.lab.models.config import FLOAT8_LINEARS, DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.fp8 import emulated
from paddle_adagc.lab.models.rank_weights import quantized_parameters

# The ERNIE proxy's model.
ERNIE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_layout": "interleaved",
    "moe_num_experts": 8,
    "moe_intermediate_size": 64,
    "moe_num_shared_experts": 1,
    "moe_correction_bias": True,
    "router_aux_loss_coef": 0.001,
    "initializer_range": 0.113,
    "num_hidden_layers": 3,
}
EXPECTED = {
    "attention": r"self_attn\.[qkvo]_proj\.weight",
    "experts": r"(experts\.\d+|shared_experts)\.(gate|up|down)_proj\.weight",
}


def make_model(kinds=FLOAT8_LINEARS):
    paddle.seed(3)
    return DecoderForCausalLM(DecoderConfig(**ERNIE, float8_linears=kinds))


def tokens(num_sequences=4, seed=0):
    draw = np.random.default_rng(seed).integers(0, 256, (num_sequences, 33))
    return paddle.to_tensor(draw[:, :-1]), paddle.to_tensor(draw[:, 1:])


def test_attention_and_experts_go_through_fp8_and_nothing_else(monkeypatch):
    model = make_model()
    names = {p.name: name for name, p in model.named_parameters()}
    plain, product, gradient = [], [], []

    def seen(module, name, used):
        function = getattr(module, name)

        def call(x, weight, *args, **options):
            used.append(names[weight.name])
            return function(x, weight, *args, **options)

        monkeypatch.setattr(module, name, call)

    seen(paddle.nn.functional, "linear", plain)
    seen(emulated, "product", product)
    seen(emulated, "input_gradient", gradient)
    model(*tokens())[0].backward()
    expected = {
        name
        for name in names.values()
        if re.search(EXPECTED["attention"], name)
        or re.search(EXPECTED["experts"], name)
    }
    assert len(expected) == 3 * (4 + 8 * 3 + 3)
    assert {*product} == {*gradient} == expected
    assert plain == ["lm_head.weight"]
    assert set(quantized_parameters(model)) == expected


@pytest.mark.parametrize("kind", ["attention", "experts"])
def test_kinds_are_quantised_on_their_own(kind):
    model = make_model([kind])
    names = [name for name, _ in model.named_parameters()]
    assert quantized_parameters(model) == [
        name for name in names if re.search(EXPECTED[kind], name)
    ]


def test_same_initial_weights_and_nearly_the_same_loss_as_float32():
    quantised, plain = make_model(), make_model([])
    assert quantized_parameters(plain) == []
    for (name, a), (_, b) in zip(
        quantised.named_parameters(), plain.named_parameters(), strict=True
    ):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), name)
    difference = float(quantised(*tokens())[0]) - float(plain(*tokens())[0])
    assert 0 < abs(difference) < 0.05
