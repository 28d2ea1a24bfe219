# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The whole model: gradients and loss. For logits see test_hf.py."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from adagc_lab.models import attention, layers
from lab.models.tiny import TINY, build


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
