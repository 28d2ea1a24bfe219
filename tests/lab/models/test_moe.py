# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Routing, experts and router losses. For outputs see test_hf.py."""

import numpy as np
import paddle
import pytest
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.moe import (
    MoE,
    Router,
    adjust_correction_biases,
    expert_balance,
    load_balancing_loss,
)


def config(**options):
    defaults = {
        "hidden_size": 8,
        "intermediate_size": 12,
        "moe_num_experts": 4,
        "initializer_range": 0.5,
    }
    return DecoderConfig(**{**defaults, **options})


def test_load_balancing_loss_by_hand():
    # Top 2, assignments 2, 1, 1 of 4: 3 (0.5 0.6 + 0.25 0.2 + 0.25 0.2).
    probabilities = paddle.to_tensor([[0.5, 0.3, 0.2], [0.7, 0.1, 0.2]])
    loss = load_balancing_loss(probabilities, paddle.to_tensor([2, 1, 1]))
    assert float(loss) == pytest.approx(3 * (0.3 + 0.05 + 0.05))


def test_expert_without_tokens_is_not_called():
    moe = MoE(config(moe_top_k=1))
    weight = np.zeros((8, 4), np.float32)
    weight[0, 1], weight[0, 3] = 5.0, -5.0
    moe.gate.weight.set_value(weight)
    calls = []
    for index, expert in enumerate(moe.experts):
        expert.register_forward_post_hook(
            lambda layer, args, out, i=index: calls.append((i, args[0].shape))
        )
    x = np.ones((1, 4, 8), np.float32)
    x[0, 3, 0] = -1.0
    moe(paddle.to_tensor(x))[0].sum().backward()
    assert calls == [(1, [3, 8]), (3, [1, 8])]
    for index in (0, 2):
        assert all(p.grad is None for p in moe.experts[index].parameters())
    for index in (1, 3):
        for parameter in moe.experts[index].parameters():
            assert float(parameter.grad.abs().sum()) > 0


def test_correction_bias_follows_the_load():
    moe = MoE(config(moe_top_k=1, moe_correction_bias=True))
    weight = np.zeros((8, 4), np.float32)
    weight[:, 2] = 1.0
    moe.gate.weight.set_value(weight)
    assert expert_balance(moe) == {}
    moe(paddle.ones([1, 5, 8]))
    # All 5 tokens to one expert of 4: 5 / 1.25 - 1 above the mean.
    assert expert_balance(moe) == {
        "expert_max_violation": 3.0,
        "idle_experts": 3,
    }
    adjust_correction_biases(paddle.nn.Sequential(moe), 0.25)
    np.testing.assert_array_equal(
        moe.e_score_correction_bias.numpy(), [0.25, 0.25, -0.25, 0.25]
    )
    assert moe.expert_load.numpy().sum() == 0
    moe.eval()
    moe(paddle.ones([1, 5, 8]))
    assert moe.expert_load.numpy().sum() == 0


def test_router_is_float32_under_bfloat16_parameters():
    paddle.seed(2)
    router = Router(config())
    router.to(dtype="bfloat16")
    assert router.weight.dtype == paddle.bfloat16
    x = paddle.randn([16, 8]).astype("bfloat16")
    probabilities, weights, _ = router(x, None)
    for tensor in (probabilities, weights):
        assert tensor.dtype == paddle.float32
    wide = [t.astype("float32") for t in (x, router.weight)]
    expected = paddle.nn.functional.softmax(paddle.matmul(*wide))
    np.testing.assert_allclose(probabilities.numpy(), expected.numpy(), 1e-5)
