# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a config, what decays, and learning rates by hand."""

import numpy as np
import paddle
import pytest
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.train.config import (
    OPTIMIZERS,
    WHOLE_TENSORS,
    ScheduleConfig,
)
from adagc_lab.train.optimizers import (
    learning_rate,
    make_optimizer,
)

MODEL = DecoderConfig(
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    moe_num_experts=2,
)
TOKENS = paddle.to_tensor(np.arange(16).reshape(2, 8))


def step(name, **arguments):
    """Arrays by name before and after one step, and the optimizer."""
    paddle.seed(0)
    model = DecoderForCausalLM(MODEL)
    model(TOKENS, labels=TOKENS)[0].backward()
    settings = OPTIMIZERS[name](**{"weight_decay": 0.0, **arguments})
    optimizer = make_optimizer(settings, model, 0.01, None, False)
    before = {k: v.numpy() for k, v in model.named_parameters()}
    optimizer.step()
    after = {k: v.numpy() for k, v in model.named_parameters()}
    return before, after, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_matrices_decay_norms_do_not_and_whole_tensors_are_known(name):
    before, without, optimizer = step(name)
    needs = getattr(optimizer, "needs_whole_tensors", False)
    assert (name in WHOLE_TENSORS) == needs
    _, with_decay, _ = step(name, weight_decay=0.5)
    for key, value in without.items():
        expected = value - ("norm" not in key) * 0.01 * 0.5 * before[key]
        np.testing.assert_allclose(with_decay[key], expected, atol=1e-6)


def test_muon_takes_hidden_matrices_alone():
    after, by_adamw = step("muon", scaling="rms")[1], step("adamw")[1]
    same = {
        key.split(".")[-2]
        for key, value in after.items()
        if np.allclose(value, by_adamw[key], atol=1e-6)
    }
    assert {"embed_tokens", "gate", "lm_head", "norm"} <= same
    assert not {"q_proj", "up_proj", "down_proj"} & same


def relative_steps(**arguments):
    """By matrix, each unit's update by AGC in units of the weights'."""
    before, after, _ = step("adamw_agc", **arguments)
    steps = {}
    for key, weight in before.items():
        if weight.ndim == 2:
            axis = 1 if "embed_tokens" in key else 0
            moved = np.linalg.norm(after[key] - weight, axis=axis) / 0.01
            steps[key] = moved / np.linalg.norm(weight, axis=axis)
    return steps


def test_agc_s_forms_differ_in_the_head_and_in_the_bound():
    # 0.02 sqrt(16) is far above the original's least norm, 0.001.
    for form, bound in (("original", 0.01), ("paper", 0.001)):
        steps = relative_steps(form=form)
        clips_head = form == "paper"
        for key, ratios in steps.items():
            if key != "lm_head.weight" or clips_head:
                assert ratios.max() == pytest.approx(bound, rel=5e-3), key
        assert clips_head or steps["lm_head.weight"].min() > 1
    tighter = relative_steps(lambda_rel=0.005)["model.embed_tokens.weight"]
    assert tighter.max() == pytest.approx(0.005, rel=5e-3)


def rates(max_steps, **fields):
    config = ScheduleConfig(learning_rate=2.0, **fields)
    return [learning_rate(config, step, max_steps) for step in range(max_steps)]


def test_constant_and_cosine_after_a_linear_warm_up():
    expected = [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert rates(6, kind="constant", warmup_steps=4) == expected
    cosine = [2.0, 1.0 + 0.5**0.5, 1.0, 1.0 - 0.5**0.5]
    assert rates(4, kind="cosine") == pytest.approx(cosine)
    config = ScheduleConfig(learning_rate=2.0, kind="cosine", min_ratio=0.5)
    assert learning_rate(config, 5, 5) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shape", "half"), [("linear", 1.0), ("cosine", 1.0), ("sqrt", 2 - 2**0.5)]
)
def test_wsd_is_flat_and_then_decays(shape, half):
    values = rates(20, kind="wsd", decay_fraction=0.2, decay_shape=shape)
    assert values[:17] == [2.0] * 17
    assert values[18] == pytest.approx(half)
    assert values[19] < values[18]
