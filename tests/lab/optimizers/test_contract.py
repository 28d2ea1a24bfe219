# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every optimizer does: clips first, decays, resumes, has masters."""

from functools import partial

import numpy as np
import paddle
import pytest
from adagc_lab.optimizers import SPAM, ClippedAdamW, Lion, Muon, StableAdamW
from adagc_lab.optimizers.update_clips import AGC, Clippy
from helpers import make_parameters
from lab.optimizers.runs import fresh, run, set_gradients

SPIKES = {"threshold": 4.0, "reset_interval": 7, "warmup_steps": 3}
KINDS = {
    "Lion": Lion,
    "Muon": Muon,
    "SPAM": partial(SPAM, **SPIKES, clip_start=2),
    "StableAdamW": StableAdamW,
    "AGC": partial(ClippedAdamW, update_clip=AGC()),
    "Clippy": partial(ClippedAdamW, update_clip=Clippy()),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request):
    return request.param


def test_resumes_bit_by_bit(kind):
    optimizer, parameters = fresh(kind, weight_decay=0.1)
    whole = run(optimizer, parameters, range(8))
    optimizer, parameters = fresh(kind, weight_decay=0.1)
    with paddle.utils.unique_name.guard():
        run(optimizer, parameters, range(5))
    weights, state = [p.numpy() for p in parameters], optimizer.state_dict()
    optimizer, parameters = fresh(kind, weight_decay=0.1)
    for parameter, weight in zip(parameters, weights, strict=True):
        parameter.set_value(weight)
    with paddle.utils.unique_name.guard():
        optimizer.set_state_dict(state)
        again = run(optimizer, parameters, range(5, 8))
    for got, expected in zip(again, whole, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_master_weights_follow_a_float32_run(kind):
    optimizer, parameters = fresh(kind, "float32")
    expected = run(optimizer, parameters, range(6))
    optimizer, parameters = fresh(kind, "bfloat16", multi_precision=True)
    for parameter in parameters:
        assert parameter.dtype == paddle.bfloat16
    got = run(optimizer, parameters, range(6))
    for mine, wide in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, wide, rtol=0.05, atol=0.05)
    optimizer, parameters = fresh(kind, "bfloat16")
    with pytest.raises(ValueError, match="use multi_precision=True"):
        run(optimizer, parameters, [0])


def test_clips_first_and_only_chosen_weights_decay(kind):
    clip = paddle.nn.ClipGradByGlobalNorm(0.0)
    optimizer, parameters = fresh(
        kind,
        grad_clip=clip,
        weight_decay=0.5,
        apply_decay_param_fun=lambda name: name == parameters_name,
    )
    parameters_name = parameters[0].name
    before = [p.numpy() for p in parameters]
    after = run(optimizer, parameters, [0])
    np.testing.assert_allclose(after[0], before[0] * (1 - 0.01 * 0.5))
    for old, new in zip(before[1:], after[1:], strict=True):
        np.testing.assert_allclose(new, old, atol=1e-12)


@pytest.mark.parametrize("epsilon", [1e-15, 1e-30])
def test_stable_adamw_without_gradients_is_finite(epsilon):
    optimizer, parameters = fresh(partial(StableAdamW, epsilon=epsilon))
    for parameter in parameters:
        parameter.grad = paddle.zeros_like(parameter)
    optimizer.step()
    assert all(bool(p.isfinite().all()) for p in parameters)


def test_spam_s_reset_heals_an_infinite_second_moment():
    (weight,) = make_parameters([[2]])
    optimizer = SPAM(0.01, parameters=[weight], reset_interval=4, clip_start=3)
    positions = []
    for step in range(6):
        set_gradients([weight], [[1e20 if step == 1 else 1.0, 1.0]])
        optimizer.step()
        positions.append(weight.numpy().copy())
    (square,) = optimizer._accumulators["moment2"].values()
    assert np.isfinite(square.numpy()).all()
    assert positions[2][0] == positions[1][0]  # no step over infinity
    assert positions[5][0] < positions[2][0]


def test_clippy_ignores_elements_that_do_not_move():
    (weight,) = make_parameters([[2]])
    weight.set_value(np.full(2, 1e3, "float32"))
    optimizer = ClippedAdamW(
        1.0, parameters=[weight], update_clip=Clippy(), weight_decay=0.0
    )
    weight.grad = paddle.to_tensor([0.0, 1.0])
    optimizer.step()
    np.testing.assert_allclose(weight.numpy(), [1e3, 999.0], rtol=1e-6)
