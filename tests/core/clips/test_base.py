# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paddle's grad_clip contract: pairs, dtypes, non-finite values, metrics."""

import math

import numpy as np
import paddle
import pytest
from helpers import clip_arrays, make_parameters
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips import step as step_module

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
    with pytest.raises(FloatingPointError, match=parameters[1].name):
        clip([*zip(parameters, gradients, strict=True)])
    assert gradients[0].item() == 50.0
    assert clip.state_dict() == before


def test_non_finite_raise_does_not_count_the_step():
    clip = ClipGradByAdaGC(nonfinite="raise")
    (parameter,) = make_parameters([[1]])
    clip_arrays(clip, [parameter], [np.ones(1)])
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="at step 1"):
            clip_arrays(clip, [parameter], [np.full(1, np.nan)])


def test_metrics_of_the_last_step():
    clip = ClipGradByAdaGC(t_start=0, lambda_rel=1.0, beta=0.5)
    assert clip.metrics() == {
        "step": -1,
        "global_grad_norm": 0.0,
        "clipped_fraction": 0.0,
        "nonfinite": 0,
        "nonfinite_total": 0,
        "tensors": {},
    }
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


def test_another_model_after_a_first_step_that_failed(monkeypatch):
    clip = ClipGradByAdaGC()
    model = paddle.nn.Sequential(*(paddle.nn.Linear(2, 2) for _ in "ab"))
    clip.bind(model)
    with monkeypatch.context() as patch:
        patch.setattr(step_module, "decide", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            clip([(p, paddle.ones_like(p)) for p in model.parameters()])
    clip.bind(model[0])
    clip([(p, paddle.ones_like(p)) for p in model[0].parameters()])
    assert clip.metrics()["nonfinite_total"] == 0
    assert clip.num_steps == 1


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


SHARED = {"global_grad_norm", "clipped_fraction", "nonfinite"}
norms = st.sampled_from([None, 0.0, 0.5, 30.0, np.nan, np.inf])


rows = st.tuples(norms, norms, norms).filter(lambda row: {*row} != {None})


@given(st.lists(rows, min_size=1, max_size=8))
@settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_numbers_of_any_sequence_of_steps(steps):
    """Totals never fall, and the two ways to read them agree."""
    parameters = make_parameters([[1]] * 3)
    clip = ClipGradByAdaGC(t_start=1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=parameters, grad_clip=clip)
    total = 0
    for row in steps:
        for parameter, x in zip(parameters, row, strict=True):
            if x is not None:
                parameter.grad = paddle.full([1], x)
        optimizer.step()
        optimizer.clear_grad(set_to_zero=False)
        metrics, summary = clip.metrics(), clip.summary()
        numbers = [x for x in row if x is not None]
        finite = np.isfinite(numbers)
        assert metrics["nonfinite"] == np.sum(~finite)
        total += np.sum(~finite)
        assert metrics["nonfinite_total"] == total
        for name in {*SHARED, "nonfinite_total"}:
            assert metrics[name] == summary[name]
        known = [t for t in metrics["tensors"].values() if t["norm"] != 0]
        assert summary["num_tensors"] == len(known)
        h = [t["h"] for t in known if np.isfinite(t["norm"])]
        clipped = np.mean(np.array(h) < 1) if h else 0
        assert summary["clipped_fraction"] == clipped


def test_summary_before_the_first_step():
    with pytest.warns(UserWarning, match="give it to the optimizer as grad_"):
        assert ClipGradByAdaGC().summary()["num_tensors"] == 0


@pytest.mark.parametrize("backend", ["host"], indirect=True)
def test_in_place_version_of_a_gradient_left_alone_stays(backend):
    small, large = paddle.full([2], 0.01), paddle.full([2], 100.0)
    before = small.inplace_version, large.inplace_version
    clip = ClipGradByAdaGC(t_start=0)
    parameters = make_parameters([[2], [2]])
    clip_arrays(clip, parameters, [np.ones(2), np.ones(2)])
    clip([*zip(parameters, (small, large), strict=True)])
    assert small.inplace_version == before[0]
    assert large.inplace_version > before[1]


@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_what_the_warm_up_never_saw_starts_unclipped(value):
    parameters = make_parameters([[1]] * 2)
    clip = ClipGradByAdaGC(t_start=3)
    for _ in range(5):
        clip_arrays(clip, parameters, [[1.0], [value]])
    (_, h) = clip_arrays(clip, parameters, [[1.0], [300.0]])
    np.testing.assert_allclose(h, [300.0])
