# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paddle's grad_clip contract: pairs, dtypes, non-finite values, metrics."""

import numpy as np
import paddle
import pytest
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC

pytestmark = pytest.mark.usefixtures("backend")


@pytest.mark.parametrize("pairs", [[], [(None, None)]])
def test_nothing_to_clip(pairs):
    clip = ClipGradByAdaGC()
    assert clip(pairs) == pairs
    assert clip.num_steps == 0


def test_non_finite_raise_names_the_tensors_and_changes_nothing():
    clip = ClipGradByAdaGC(nonfinite="raise")
    parameters = make_parameters([[1], [1]])
    clip_arrays(clip, parameters, [np.ones(1), np.ones(1)])
    before = clip.state_dict()
    gradients = [paddle.full([1], 50.0), paddle.full([1], float("nan"))]
    message = f"at step 1: {parameters[1].name}"
    for _ in range(2):
        with pytest.raises(FloatingPointError, match=message):
            clip([*zip(parameters, gradients, strict=True)])
        assert gradients[0].item() == 50.0
        assert clip.state_dict() == before


def test_metrics_of_the_last_step():
    clip = ClipGradByAdaGC(t_start=0, lambda_rel=1.0, beta=0.5)
    assert (clip.metrics()["step"], clip.metrics()["tensors"]) == (-1, {})
    first, second, third = make_parameters([[1]] * 3)
    one = [np.ones(1)]
    clip_arrays(clip, [first, second, third], one * 3)
    clip_arrays(clip, [first, third], [np.full(1, 4.0), np.full(1, 0.5)])
    metrics = clip.metrics()
    assert metrics["step"] == 1
    assert metrics["global_grad_norm"] == pytest.approx(np.sqrt(16.25))
    assert metrics["clipped_fraction"] == 0.5
    assert metrics["tensors"] == {
        first.name: {"norm": 4.0, "gamma": 1.0, "h": 0.25},
        third.name: {"norm": 0.5, "gamma": 0.75, "h": 1.0},
    }


def test_static_graph_is_refused_with_a_way_out():
    paddle.enable_static()
    try:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [2, 3], "float32")
            loss = paddle.nn.Linear(3, 1)(x).mean()
            optimizer = paddle.optimizer.SGD(0.1, grad_clip=ClipGradByAdaGC())
            with pytest.raises(RuntimeError, match="enable_static"):
                optimizer.minimize(loss)
    finally:
        paddle.disable_static()


def test_parameters_alone_are_refused():
    """As for Paddle's ``paddle.nn.utils.clip_grad_norm_``."""
    model = paddle.nn.Linear(2, 2)
    with pytest.raises(TypeError, match="to an optimizer as grad_clip"):
        ClipGradByAdaGC()(model.parameters())


def test_summary_and_metrics_of_the_whole_model():
    parameters = make_parameters([[1], [1], [1], [1]])
    clip = ClipGradByAdaGC(t_start=0)
    clip_arrays(clip, parameters, [np.array([x]) for x in (3.0, 4.0, 1.0, 0)])
    grads = [3.0, 16.0, np.nan, 0.0]
    clip_arrays(clip, parameters, [np.array([x]) for x in grads])
    summary = clip.summary()
    h = 1.04 * 4 / 16
    lost, clipped = parameters[2].name, parameters[1].name
    assert summary.pop("lowest_h") == {clipped: pytest.approx(h)}
    assert summary == pytest.approx(
        {
            "step": 1,
            "global_grad_norm": np.hypot(3, 16),
            "clipped_grad_norm": np.hypot(3, 16 * h),
            "num_tensors": 3,
            "clipped_fraction": 0.5,
            "clipped_norm_fraction": 1 - np.hypot(3, 16 * h) / np.hypot(3, 16),
            "h_min": h,
            "h_p10": h + 0.1 * (1 - h),
            "h_median": (1 + h) / 2,
            "nonfinite": 1,
            "nonfinite_total": 1,
        }
    )
    metrics = clip.summary(tensors=True)
    assert metrics["step"] == 1
    tensors = metrics["tensors"]
    assert [*tensors] == [p.name for p in parameters[:3]]
    assert tensors[lost]["h"] == 0.0
    assert [*clip.metrics()["tensors"]] == [p.name for p in parameters]


def test_summary_before_the_first_step():
    with pytest.warns(UserWarning, match="give it to the optimizer as grad_"):
        assert ClipGradByAdaGC().summary()["num_tensors"] == 0
