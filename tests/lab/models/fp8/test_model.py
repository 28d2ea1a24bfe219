# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoders with FP8 linears: what goes through them, and training."""

import re

import numpy as np
import paddle
import pytest
from reference import fp8 as reference

from paddle_adagc.lab.models.config import FLOAT8_LINEARS, DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.fp8 import emulated
from paddle_adagc.lab.models.fp8.linear import is_float8
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
    "mlp": r"\.mlp\.(gate|up|down)_proj\.weight",
    "experts": r"(experts\.\d+|shared_experts)\.(gate|up|down)_proj\.weight",
}


def make_model(kinds=FLOAT8_LINEARS, **options):
    paddle.seed(3)
    return DecoderForCausalLM(
        DecoderConfig(**{**ERNIE, **options, "float8_linears": kinds})
    )


def tokens(num_sequences=4, seed=0):
    draw = np.random.default_rng(seed).integers(0, 256, (num_sequences, 33))
    return paddle.to_tensor(draw[:, :-1]), paddle.to_tensor(draw[:, 1:])


@pytest.fixture
def calls(monkeypatch):
    """Every quantised product: name, right operand's name, and arrays.

    Arrays are copied at once: autograd adds to gradients in place.
    """
    seen = []
    for name in ("product", "input_gradient", "weight_gradient"):
        function = getattr(emulated, name)

        def look(left, right, name=name, function=function):
            out = function(left, right)
            arrays = [t.numpy().copy() for t in (left, right, out)]
            seen.append((name, right.name, arrays))
            return out

        monkeypatch.setattr(emulated, name, look)
    return seen


def test_attention_and_experts_go_through_fp8_and_nothing_else(
    calls, monkeypatch
):
    model = make_model()
    plain = []
    linear = paddle.nn.functional.linear
    monkeypatch.setattr(
        paddle.nn.functional,
        "linear",
        lambda x, weight, *args, **options: (
            plain.append(weight.name) or linear(x, weight, *args, **options)
        ),
    )
    model(*tokens())[0].backward()
    names = {p.name: name for name, p in model.named_parameters()}
    used = {
        kind: {names[right] for name, right, _ in calls if name == kind}
        for kind in ("product", "input_gradient")
    }
    expected = {
        name
        for name in names.values()
        if re.search(EXPECTED["attention"], name)
        or re.search(EXPECTED["experts"], name)
    }
    assert len(expected) == 3 * (4 + 8 * 3 + 3)
    assert used["product"] == used["input_gradient"] == expected
    num_weight_gradients = sum(c[0] == "weight_gradient" for c in calls)
    assert num_weight_gradients == len(expected)
    assert {names[name] for name in plain} == {"lm_head.weight"}
    assert set(quantized_parameters(model)) == expected
    others = set(names.values()) - expected
    assert {name.split(".")[-2] for name in others} == {
        "embed_tokens",
        "gate",
        "input_layernorm",
        "post_attention_layernorm",
        "norm",
        "lm_head",
    }


def test_every_product_of_a_step_equals_the_reference(calls):
    model = make_model(num_hidden_layers=1)
    model(*tokens())[0].backward()
    assert {c[0] for c in calls} == {
        "product",
        "input_gradient",
        "weight_gradient",
    }
    for name, _, (a, b, out) in calls:
        blocks = (1, 128), (128, 128)
        if name == "weight_gradient":
            a = np.ascontiguousarray(a.T)
            blocks = (1, 128), (128, 1)
        if name == "input_gradient":
            b = np.ascontiguousarray(b.T)
        expected = reference.product(
            reference.quantize(a, blocks[0]), reference.quantize(b, blocks[1])
        )
        np.testing.assert_allclose(
            out,
            expected,
            rtol=0,
            atol=1e-6 * np.abs(expected).max(),
            err_msg=name,
        )


@pytest.mark.parametrize("kind", FLOAT8_LINEARS)
def test_kinds_are_quantised_on_their_own(kind):
    model = make_model([kind], moe_layers=[1, 2])
    names = [name for name, _ in model.named_parameters()]
    assert quantized_parameters(model) == [
        name for name in names if re.search(EXPECTED[kind], name)
    ]


def test_no_linear_is_quantised_by_default():
    model = make_model([])
    assert not any(is_float8(layer) for layer in model.sublayers())
    assert quantized_parameters(model) == []


def test_same_initial_weights_and_nearly_the_same_loss_as_float32():
    quantised, plain = make_model(), make_model([])
    for (name, a), (_, b) in zip(
        quantised.named_parameters(), plain.named_parameters(), strict=True
    ):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), name)
    difference = float(quantised(*tokens())[0]) - float(plain(*tokens())[0])
    assert 0 < abs(difference) < 0.05
