# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the pages promise and no other test holds."""

import numpy as np
import paddle
import pytest
from helpers import feed, run_python

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.watch import Record


def test_each_parameter_group_has_its_own_norm_in_the_warm_up():
    first, second = paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 4)
    clip = ClipGradByAdaGC(lambda_abs=1.0)
    groups = [{"params": x.parameters()} for x in (first, second)]
    optimizer = paddle.optimizer.SGD(1.0, parameters=groups, grad_clip=clip)
    weights = [*first.parameters(), *second.parameters()]
    before = [weight.numpy() for weight in weights]
    for weight, size in zip(weights, (3.0, 4.0, 0.1, 0.2), strict=True):
        gradient = np.zeros(weight.shape, np.float32)
        gradient.flat[0] = size
        weight.grad = paddle.to_tensor(gradient)
    optimizer.step()
    moved = [
        np.linalg.norm(old - weight.numpy())
        for old, weight in zip(before, weights, strict=True)
    ]
    np.testing.assert_allclose(moved, [0.6, 0.8, 0.1, 0.2], rtol=1e-5)


def test_after_sixteen_steps_that_are_left_out_one_is_made(tmp_path):
    model = paddle.nn.Linear(4, 2)
    optimizer = paddle.optimizer.AdamW(
        parameters=model.parameters(), grad_clip=ClipGradByAdaGC()
    )
    record = Record(tmp_path, optimizer, model, skip_above=8)
    for step in range(40):
        factor = 1.0 if step < 3 else float("nan")
        (model(paddle.ones([1, 4])).sum() * factor).backward()
        optimizer.step()
        record.step()
        optimizer.clear_grad()
    record.close()
    # Three, then each seventeenth.
    assert record.num_skipped == 40 - 3 - 2
    assert optimizer._grad_clip.num_steps == 3 + 2


def test_the_loops_in_c_are_switched_off_with_the_kernels(tmp_path):
    off = {"PADDLE_ADAGC_NATIVE": "0"}
    ended = run_python(tmp_path, "-m", "paddle_adagc", **off)
    assert ended.returncode == 0
    assert "the clip uses  Paddle's operators: " in ended.stdout


@pytest.mark.parametrize(("norm", "is_zero"), [(1e-20, False), (1e-23, True)])
def test_a_tiny_norm_counts_as_zero(norm, is_zero):
    clip = ClipGradByAdaGC(t_start=1, beta=0.5)
    clipped, gammas = feed(clip, [[1.0], [norm]])
    np.testing.assert_allclose(clipped[1], [norm], rtol=1e-3)
    assert gammas[1] == pytest.approx([1.0 if is_zero else 0.5], rel=1e-3)


def test_a_run_with_finite_losses_is_not_lost(tmp_path):
    """After 16 skips a Trainer may end at a loss of NaN, at no other."""
    model = paddle.nn.Linear(4, 2)
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
    record = Record(tmp_path, optimizer, model, skip_above=8)
    sizes = 1 + 0.1 * np.random.default_rng(0).random(70)
    for size in [*sizes, *[1e3] * 16]:
        (model(paddle.ones([1, 4])).sum() * size).backward()
        record.add_loss(2.0)
        optimizer.step()
        record.step()
        optimizer.clear_grad()
        assert not record.is_lost
    assert record.num_skipped == 16
    record.add_loss(float("nan"))
    assert record.is_lost
    record.close()
