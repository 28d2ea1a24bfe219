# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
from helpers import clip_arrays, make_parameters
from reference.clips import ZClip

from paddle_adagc.clips.global_clips import ClipGradByZClip


def series(num_steps, seed=0):
    """Gradients of two tensors with outliers in both phases."""
    rng = np.random.default_rng(seed)
    return [
        [
            rng.normal(size=4) * (40 if t % 11 == 7 else 0.3),
            rng.normal(size=6) * 0.3,
        ]
        for t in range(num_steps)
    ]


def kept_by(clip):
    state = clip.state_dict()
    return {k: float(state[k]["global"]) for k in ("count", "mean", "variance")}


@pytest.mark.parametrize("max_grad_norm", [None, 1.5])
@pytest.mark.parametrize("z_thres", [2.0, 2.5])
def test_equals_the_reference(max_grad_norm, z_thres):
    values = {
        "alpha": 0.9,
        "z_thres": z_thres,
        "max_grad_norm": max_grad_norm,
        "warmup_steps": 10,
    }
    clip, twin = ClipGradByZClip(**values), ZClip(**values)
    parameters = make_parameters([[4], [6]])
    num_clipped = 0
    for grads in series(60):
        expected = twin.step(grads)
        num_clipped += not np.array_equal(expected[0], grads[0])
        got = clip_arrays(clip, parameters, grads)
        np.testing.assert_allclose(
            np.concatenate(got), np.concatenate(expected), rtol=2e-5
        )
    kept = kept_by(clip)
    assert kept["mean"] == pytest.approx(twin.mu, rel=1e-5)
    assert kept["variance"] == pytest.approx(twin.var, rel=1e-4)
    assert 0 < num_clipped < 60


@pytest.mark.parametrize("stop", [4, 30])
def test_state_resumes_bit_equal(stop):
    parameters = make_parameters([[4], [6]])
    clip, other = (ClipGradByZClip(warmup_steps=10) for _ in range(2))
    for t, grads in enumerate(series(40)):
        if t == stop:
            other.set_state_dict(clip.state_dict())
        got = clip_arrays(clip, parameters, grads)
        if t >= stop:
            again = clip_arrays(other, parameters, grads)
            np.testing.assert_array_equal(
                np.concatenate(got), np.concatenate(again)
            )
    assert other.num_steps == clip.num_steps == 40


def test_a_step_without_gradient_is_no_observation():
    clip = ClipGradByZClip(warmup_steps=2, max_grad_norm=None)
    parameters = make_parameters([[2]])
    for value in (1.0, 0.0, 3.0):
        (out,) = clip_arrays(clip, parameters, [np.array([value, 0.0])])
        np.testing.assert_array_equal(out, [value, 0.0])
    assert kept_by(clip) == {"count": 2.0, "mean": 2.0, "variance": 1.0}


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        ({"mean": 1.0, "variance": 1.0}, "lacks 'count'"),
        ({"count": 1.0, "mean": 1.0, "variance": -1.0}, "variance"),
    ],
)
def test_foreign_or_broken_state_is_refused(norm, message):
    clip = ClipGradByZClip()
    with pytest.raises(ValueError, match=message):
        clip.set_state_dict({"step": 3, "norm": norm, "config": {}})
    assert clip.num_steps == 0


def test_state_of_format_2_loads():
    clip = ClipGradByZClip()
    norm = {"count": 30.0, "mean": 0.5, "variance": 0.25}
    clip.set_state_dict({"step": 40, "norm": norm, "config": {}})
    assert clip.num_steps == 40
    assert kept_by(clip) == norm


@pytest.mark.parametrize(
    "arguments",
    [{"alpha": 1.0}, {"z_thres": 0.0}, {"max_grad_norm": -1.0}],
)
def test_bad_arguments(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        ClipGradByZClip(**arguments)


@pytest.mark.parametrize("warmup_steps", [1, 8])
def test_norm_without_a_lost_tensor_is_no_observation(warmup_steps):
    parameters = make_parameters([[1], [1]])
    clip, untouched = (
        ClipGradByZClip(warmup_steps=warmup_steps) for _ in range(2)
    )
    for step in range(6):
        usual = [np.array([3.0 + 0.1 * step]), np.array([4.0])]
        clip_arrays(clip, parameters, usual)
        clip_arrays(untouched, parameters, usual)
        clip_arrays(clip, parameters, [np.array([np.nan]), usual[1]])
    assert kept_by(clip) == kept_by(untouched)
