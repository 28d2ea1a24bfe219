# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm, rotary embeddings and attention against NumPy."""

import numpy as np
import paddle
import pytest

from paddle_adagc.lab.models import attention, layers, rms_norm, rotary
from paddle_adagc.lab.models.config import DecoderConfig


def numpy_rms_norm(x, weight, eps):
    return weight * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_rms_norm_both_paths(monkeypatch, on_cpu):
    monkeypatch.setattr(rms_norm, "runs_on_cpu", lambda x: on_cpu)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 8)).astype("float32")
    weight = rng.normal(size=8).astype("float32")
    got = rms_norm.rms_norm(paddle.to_tensor(x), paddle.to_tensor(weight), 1e-3)
    np.testing.assert_allclose(
        got.numpy(), numpy_rms_norm(x, weight, 1e-3), rtol=1e-5, atol=1e-6
    )


def test_rms_norm_gradients_agree_between_paths(monkeypatch):
    rng = np.random.default_rng(1)
    data = rng.normal(size=(3, 8)).astype("float32")
    pull = paddle.to_tensor(rng.normal(size=(3, 8)), dtype="float32")
    grads = []
    for on_cpu in (True, False):
        monkeypatch.setattr(rms_norm, "runs_on_cpu", lambda x, c=on_cpu: c)
        x = paddle.to_tensor(data, stop_gradient=False)
        weight = paddle.to_tensor(data[0], stop_gradient=False)
        (rms_norm.rms_norm(x, weight, 1e-5) * pull).sum().backward()
        grads.append((x.grad.numpy(), weight.grad.numpy()))
    for fast, plain in zip(*grads, strict=True):
        np.testing.assert_allclose(fast, plain, rtol=1e-4, atol=1e-6)


def test_rms_norm_computes_in_float32_under_bfloat16():
    # The squares' sum, 256 + 255 small ones, is not a bfloat16 number.
    x = np.full((1, 256), 1.0, np.float32)
    x[0, 0] = 16.0
    weight = paddle.ones([256], dtype="bfloat16")
    got = rms_norm.rms_norm(
        paddle.to_tensor(x).astype("bfloat16"), weight, 1e-5
    )
    assert got.dtype == paddle.bfloat16
    exact = numpy_rms_norm(x, 1.0, 1e-5)
    rounded = paddle.to_tensor(exact).astype("bfloat16").astype("float32")
    np.testing.assert_array_equal(
        got.astype("float32").numpy(), rounded.numpy()
    )


@pytest.mark.parametrize(
    ("layout", "pairs"),
    [("half", [(0, 2), (1, 3)]), ("interleaved", [(0, 1), (2, 3)])],
)
def test_rotation_turns_the_pairs_of_its_layout(layout, pairs):
    theta, length = 100.0, 5
    x = np.random.default_rng(2).normal(size=(1, length, 1, 4))
    expected = np.empty_like(x)
    for position in range(length):
        for j, (a, b) in enumerate(pairs):
            angle = position * theta ** (-2 * j / 4)
            c, s = np.cos(angle), np.sin(angle)
            xa, xb = x[0, position, 0, a], x[0, position, 0, b]
            expected[0, position, 0, a] = xa * c - xb * s
            expected[0, position, 0, b] = xa * s + xb * c
    tensor = paddle.to_tensor(x, dtype="float32")
    cos, sin = rotary.rotary_tables(length, 4, theta, layout)
    got = rotary.rotate(tensor, cos, sin, layout)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)
    turned = tensor.numpy() @ rotary.quarter_turn(4, layout)
    np.testing.assert_array_equal(
        rotary.turn_pairs(tensor, layout).numpy(), turned
    )


def numpy_attention(query, key, value):
    """Causal attention, one head and one position at a time."""
    batch, length, heads, head_dim = query.shape
    group = heads // key.shape[2]
    out = np.zeros_like(query)
    for b in range(batch):
        for h in range(heads):
            for t in range(length):
                scores = key[b, : t + 1, h // group] @ query[b, t, h]
                scores = np.exp((scores - scores.max()) / head_dim**0.5)
                out[b, t, h] = (
                    scores / scores.sum() @ value[b, : t + 1, h // group]
                )
    return out


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(
    "attend", [attention.attend_batched, attention.attend_folded]
)
def test_attention_both_paths(attend, layout):
    rng = np.random.default_rng(3)
    query = rng.normal(size=(2, 6, 4, 8)).astype("float32")
    key, value = rng.normal(size=(2, 2, 6, 2, 8)).astype("float32")
    got = attend(*map(paddle.to_tensor, (query, key, value)), 50.0, layout)
    cos, sin = rotary.rotary_tables(6, 8, 50.0, layout)
    turned = [
        rotary.rotate(paddle.to_tensor(x), cos, sin, layout).numpy()
        for x in (query, key)
    ]
    expected = numpy_attention(*turned, value)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_attention_gradients_agree_between_paths():
    rng = np.random.default_rng(4)
    shapes = [(2, 6, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8)]
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    pull = paddle.to_tensor(rng.normal(size=shapes[0]), dtype="float32")
    grads = []
    for attend in (attention.attend_batched, attention.attend_folded):
        inputs = [paddle.to_tensor(a, stop_gradient=False) for a in arrays]
        (attend(*inputs, 50.0, "half") * pull).sum().backward()
        grads.append([x.grad.numpy() for x in inputs])
    for plain, folded in zip(*grads, strict=True):
        np.testing.assert_allclose(folded, plain, rtol=1e-4, atol=1e-5)


def test_gated_mlp():
    config = DecoderConfig(hidden_size=8, initializer_range=0.5)
    mlp = layers.GatedMLP(config, 12)
    x = paddle.randn([3, 8])
    gate = x.numpy() @ mlp.gate_proj.weight.numpy()
    hidden = (
        gate / (1 + np.exp(-gate)) * (x.numpy() @ mlp.up_proj.weight.numpy())
    )
    np.testing.assert_allclose(
        mlp(x).numpy(),
        hidden @ mlp.down_proj.weight.numpy(),
        rtol=1e-4,
        atol=1e-5,
    )
