# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The whole model and its norms. For logits see test_hf.py."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from adagc_lab.models import attention, layers
from adagc_lab.models.families import decoder_config
from adagc_lab.models.layers import RMSNorm, rms_norm, rms_norm_bfloat16
from lab.models.tiny import TINY, build
from ml_dtypes import bfloat16


def tokens(batch=3, length=10, seed=0):
    rng = np.random.default_rng(seed)
    return paddle.to_tensor(rng.integers(0, 256, (batch, length)))


@pytest.mark.parametrize("family", TINY)
def test_loss_and_gradients_equal_those_of_the_general_path(
    family, monkeypatch
):
    results = []
    options = {"moe_top_k": 6} if "moe_top_k" in TINY[family] else {}
    for on_cpu in (True, False):
        for module in (layers, attention):
            monkeypatch.setattr(module, "runs_on_cpu", lambda x, c=on_cpu: c)
        model = build(family, **options)
        loss, _ = model(tokens(), labels=tokens(seed=1))
        loss.backward()
        grads = [p.grad.numpy() for p in model.parameters()]
        results.append((float(loss), grads))
    (fast_loss, fast), (loss, plain) = results
    assert fast_loss == pytest.approx(loss, rel=1e-5)
    for left, right in zip(fast, plain, strict=True):
        assert np.abs(right).sum() > 0
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-5)


def test_loss_is_the_mean_over_labels_that_count():
    model = build("llama")
    ids, labels = tokens(), tokens(seed=1).numpy()
    labels[0, :4] = -100
    loss, logits = model(ids, labels=paddle.to_tensor(labels))
    log_p = F.log_softmax(logits).numpy().reshape(-1, 256)
    labels = labels.reshape(-1)
    kept = np.flatnonzero(labels != -100)
    expected = -log_p[kept, labels[kept]].mean()
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    ignored = paddle.full([3, 10], -100, dtype="int64")
    assert float(model(ids, labels=ignored)[0]) == 0.0


def test_router_loss_is_added_in_training_only():
    model = build("mixtral", router_aux_loss_coef=0.1)
    loss, _ = model(tokens(), labels=tokens(seed=1))
    plain = float(model.last_loss)
    assert 0.09 < float(loss) - plain < 0.2  # 0.1 where experts are balanced
    model.eval()
    loss, _ = model(tokens(), labels=tokens(seed=1))
    assert float(loss) == pytest.approx(plain, rel=1e-6)


def test_nan_weights_give_a_nan_loss():
    # Paddle's CPU softmax alone would give log(vocab_size).
    model = build("llama")
    weight = model.model.norm.weight
    weight.set_value(paddle.full(weight.shape, float("nan")))
    ids = paddle.zeros([2, 8], "int64")
    assert paddle.isnan(model(ids, ids)[0]).item()


EPS = 1e-5


def test_rms_norm_computes_in_float32_under_bfloat16():
    # The squares' sum, 256 + 255 small ones, is not a bfloat16 number.
    x = np.ones((1, 256), np.float32)
    x[0, 0] = 16.0
    weight = paddle.ones([256], dtype="bfloat16")
    got = rms_norm(paddle.to_tensor(x).astype("bfloat16"), weight, 1e-5)
    assert got.dtype == paddle.bfloat16
    exact = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    rounded = paddle.to_tensor(exact).astype("bfloat16").astype("float32")
    # Up to one bfloat16 step; a bfloat16 sum would be off by sqrt(2).
    np.testing.assert_allclose(
        got.astype("float32").numpy(), rounded.numpy(), rtol=2**-7
    )


def twin(x, weight):
    """Step by step, each result rounded."""
    x, weight = x.astype(bfloat16), weight.astype(bfloat16)
    square = x * x
    mean = square.astype(np.float32).mean(-1, keepdims=True).astype(bfloat16)
    shifted = mean + bfloat16(EPS)
    scale = (1 / np.sqrt(shifted.astype(np.float32))).astype(bfloat16)
    return (x * scale) * weight


def test_every_operation_is_rounded():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 48)) * np.exp(rng.normal(size=(64, 1)))
    x, weight = x.astype("float32"), rng.normal(size=48).astype("float32")
    got = rms_norm_bfloat16(*map(paddle.to_tensor, (x, weight)), EPS).numpy()
    expected = twin(x, weight).astype(np.float32)
    assert got.dtype == np.float32
    # Another order of the sum may round a mean the other way: one in 256.
    same = (got == expected).all(axis=1)
    assert same.mean() > 0.9
    np.testing.assert_allclose(got, expected, rtol=2**-6)
    np.testing.assert_array_equal(got, got.astype(bfloat16))
    exact = rms_norm(*map(paddle.to_tensor, (x, weight)), EPS).numpy()
    error = np.abs(got / exact - 1)
    assert 1e-3 < error.mean() < 8e-3


def test_all_norms_of_a_decoder_take_the_option():
    model = build("qwen3", rms_norm_precision="bfloat16")
    norms = [m for m in model.sublayers() if isinstance(m, RMSNorm)]
    assert {norm.compute for norm in norms} == {rms_norm_bfloat16}


TWO = {"moe_num_experts": 2}
WESAR_TIED = {"initialization": "wesar", "tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_attention_heads": 6}, "give head_dim"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"head_dim": 7}, "head_dim=7"),
        ({"moe_num_shared_experts": 1}, "give moe_num_experts"),
        (TWO | {"moe_top_k": 3}, "moe_top_k=3"),
        (WESAR_TIED, "tie_word_embeddings=True with initialization='wesar'"),
        ({"float8_linears": ["attention", "router"]}, "'router'"),
        ({"preset": "llama2_7b"}, "did you mean 'llama2-7b'"),
    ],
)
def test_refuses_bad_values(options, message):
    with pytest.raises(ValueError, match=message):
        decoder_config(options)
