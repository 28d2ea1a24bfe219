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
    WITHOUT_MOMENTS,
    ScheduleConfig,
)
from adagc_lab.train.optimizers import (
    learning_rate,
    make_optimizer,
)
from helpers import slow_but
from lab.train.runs import proxy_values, run_whole_and_cut

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


@pytest.mark.parametrize(
    ("arguments", "bound"),
    [
        ({"form": "original"}, 0.01),
        ({"form": "original", "lambda_rel": 0.005}, 0.005),
        ({"form": "paper"}, 0.001),
    ],
)
def test_agc_s_forms_differ_in_the_head_and_in_the_bound(arguments, bound):
    before, after, _ = step("adamw_agc", **arguments)
    for key, weight in before.items():
        if weight.ndim == 1:
            continue
        # 0.02 sqrt(16) is far above the original's least norm, 0.001.
        axis = 1 if "embed_tokens" in key else 0
        moved = np.linalg.norm(after[key] - weight, axis=axis) / 0.01
        ratios = moved / np.linalg.norm(weight, axis=axis)
        if key == "lm_head.weight" and arguments["form"] == "original":
            assert ratios.min() > 1
        else:
            assert ratios.max() == pytest.approx(bound, rel=5e-3), key


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


OPTIONS = {
    # Resets, and clips between them, before and after the checkpoint.
    "spam": ["optimizer.reset_interval=3", "optimizer.clip_start=1"],
    "adamw_agc": ["optimizer.lambda_rel=0.1"],
    "adamw_clippy": ["optimizer.lambda_abs=1e-5"],
}


@pytest.mark.parametrize("name", slow_but("muon", OPTIMIZERS))
def test_every_optimizer_trains_and_resumes(name, tmp_path):
    moments = str(name not in WITHOUT_MOMENTS).lower()
    values = proxy_values(
        "llama_low_noise",
        "",
        "train.max_steps=8",
        "train.batch_size=4",
        "train.save_every=4",
        "train.visualdl=false",
        "data.validation_size=8",
        "schedule.warmup_steps=2",
        f"optimizer.name={name}",
        f"record.moments={moments}",
        *OPTIONS.get(name, ()),
    )
    record = run_whole_and_cut(values, tmp_path, at=6)
    assert record.run["config"]["optimizer"]["name"] == name
    assert record.loss[-1] < record.loss[0]
    if moments == "true":
        first = record.tensors["moment1"]
        assert (first[-1] > 0).any()
    if name == "spam":  # at a reset the first moment is the gradient's share
        share = 0.1 * record.tensors["clipped_norm"][2]
        np.testing.assert_allclose(first[2], share, rtol=1e-5)
