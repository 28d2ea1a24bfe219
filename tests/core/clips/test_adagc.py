# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""ClipGradByAdaGC against the literal twin of Algorithm 1, and its variants."""

import warnings
from functools import partial

import numpy as np
import paddle
import pytest
from helpers import clip_arrays, feed, gammas, make_parameters
from reference.adagc import adagc_step

from paddle_adagc import ClipGradByAdaGC, make_clip

pytestmark = pytest.mark.usefixtures("backend")


SHAPES = [[7, 5], [5], [3, 4, 2], [1], [64, 48]]


def random_gradients(rng, step):
    """Norms that shrink, with outliers in single tensors now and then."""
    grads = [
        rng.normal(size=shape).astype("float32") / (1 + 0.1 * step)
        for shape in SHAPES
    ]
    if step % 7 == 3:
        grads[step % len(grads)] *= 50
    return grads


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"t_start": 0},
        {"t_start": 1},
        {"t_start": 30, "lambda_abs": 1e9},
        {"t_start": 50, "lambda_rel": 1.5, "beta": 0.9, "lambda_abs": 0.1},
        {"t_start": 3, "lambda_rel": 1.2, "beta": 0.98},
    ],
    ids=str,
)
def test_equals_the_numpy_twin_for_120_steps(arguments):
    values = {
        "lambda_rel": 1.04,
        "beta": 0.99,
        "lambda_abs": 1.0,
        "t_start": 100,
        **arguments,
    }
    rng = np.random.default_rng(0)
    clip = ClipGradByAdaGC(strict=True, **arguments)
    parameters = make_parameters(SHAPES)
    gamma = None
    for t in range(120):
        grads = random_gradients(rng, t)
        expected, gamma = adagc_step(t, grads, gamma, **values)
        got = clip_arrays(clip, parameters, grads)
        for ours, theirs in zip(got, expected, strict=True):
            scale = np.abs(theirs).max()
            np.testing.assert_allclose(
                ours, theirs, rtol=1e-6, atol=1e-7 * scale
            )
        np.testing.assert_allclose(gammas(clip), gamma, rtol=1e-6)


def test_two_tensors_by_hand():
    clip = ClipGradByAdaGC(lambda_rel=2.0, beta=0.5, lambda_abs=5.0, t_start=2)
    parameters = make_parameters([[2], [1]])

    def step(first, second):
        grads = [np.float32([first, 0.0]), np.float32([second])]
        clipped = clip_arrays(clip, parameters, grads)
        return [clipped[0][0], clipped[1][0]]

    assert step(6.0, 8.0) == [3.0, 4.0]  # global norm 10 > 5
    np.testing.assert_array_equal(gammas(clip), [3.0, 4.0])
    assert step(1.0, 4.5) == [1.0, 4.5]  # below 5: nothing to clip
    np.testing.assert_array_equal(gammas(clip), [1.0, 4.0])
    assert step(8.0, 8.0) == [2.0, 8.0]  # first adaptive: 2 * 1 and 2 * 4
    np.testing.assert_array_equal(gammas(clip), [1.5, 6.0])


@pytest.mark.parametrize("nothing", [0.0, None])
def test_zero_or_missing_norm_does_not_enter_the_warm_up_minimum(nothing):
    clip = ClipGradByAdaGC(t_start=3, lambda_abs=100.0)
    _, gamma = feed(clip, [[2.0, 1.0], [nothing, 1.0], [3.0, 1.0]])
    assert [row[0] for row in gamma] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("nothing", [0.0, None])
def test_zero_or_missing_norm_leaves_gamma_in_the_adaptive_phase(nothing):
    clip = ClipGradByAdaGC(t_start=0, beta=0.5, lambda_rel=2.0)
    out, gamma = feed(
        clip, [[2.0, 1.0]] + [[nothing, 1.0]] * 200 + [[4.0, 1.0]]
    )
    assert gamma[200][0] == 2.0
    assert out[-1][0] == 4.0
    assert gamma[-1][0] == 3.0


@pytest.mark.parametrize("nothing", [0.0, None])
def test_tensor_first_seen_after_the_warm_up_starts_unclipped(nothing):
    clip = ClipGradByAdaGC(t_start=2, lambda_rel=1.0, beta=0.5)
    out, gamma = feed(
        clip, [[nothing, 0.5]] * 4 + [[8.0, 0.5], [16.0, 0.5], [4.0, 0.5]]
    )
    assert [row[0] for row in out[4:]] == [8.0, 8.0, 4.0]
    assert [row[-1 if nothing is None else 0] for row in gamma[4:]] == [
        8.0,
        8.0,
        6.0,
    ]


def test_init_min_no_warmup_does_not_clip_and_takes_the_smallest_norm():
    clip = ClipGradByAdaGC(init="min_no_warmup", t_start=2, lambda_rel=1.0)
    out, gamma = feed(clip, [[30.0], [10.0], [20.0]])
    assert [row[0] for row in out] == [30.0, 10.0, 10.0]
    assert [row[0] for row in gamma] == [30.0, 10.0, 10.0]


def test_init_constant_is_adaptive_from_the_first_step():
    clip = ClipGradByAdaGC(
        init="constant", init_value=0.5, lambda_rel=2.0, beta=0.5
    )
    out, gamma = feed(clip, [[3.0, 0.25], [1.5, None]])
    assert out == [[1.0, 0.25], [1.5, None]]
    assert gamma == [[0.75, 0.375], [1.125, 0.375]]
    assert ClipGradByAdaGC(init="constant").init_value == 1.0


@pytest.mark.parametrize("nothing", [0.0, None])
def test_init_lambda_abs_starts_at_the_bound_after_global_clipping(nothing):
    clip = ClipGradByAdaGC(
        init="lambda_abs", lambda_abs=0.5, t_start=2, lambda_rel=2.0, beta=0.5
    )
    out, gamma = feed(
        clip, [[3.0, 4.0], [1e6, 1e-6], [0.25, 4.0], [0.25, nothing]]
    )
    assert out[0] == [np.float32(0.3), np.float32(0.4)]
    assert out[1] == [0.5, pytest.approx(5e-13)]
    assert out[2:] == [[0.25, 1.0], [0.25, nothing]]
    assert gamma == [[0.5, 0.5]] * 2 + [[0.375, 0.75], [0.3125, 0.75]]


def test_init_lambda_abs_has_no_bad_warm_up_step():
    norms = np.random.default_rng(0).uniform(0.1, 0.2, (30, 3))
    _, expected = feed(ClipGradByAdaGC(init="lambda_abs", t_start=20), norms)
    norms[:20] *= 10.0 ** np.random.default_rng(1).integers(-12, 12, (20, 3))
    _, gamma = feed(ClipGradByAdaGC(init="lambda_abs", t_start=20), norms)
    assert gamma == expected


def test_init_threshold_bounds_the_latest_norm_and_does_not_clip():
    clip = ClipGradByAdaGC(init="threshold", t_start=2, lambda_rel=1.0)
    out, gamma = feed(clip, [[0.25, 0.01], [3.0, 0.05], [3.0, 0.05]])
    expected = [[0.25, 0.01], [3.0, 0.05], [0.1, 0.05]]
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    np.testing.assert_allclose(
        gamma, [[0.1, 0.01], [0.1, 0.05], [0.1, 0.05]], rtol=1e-6
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"lambda_rel": 0},
        {"lambda_rel": -1.04},
        {"lambda_rel": float("nan")},
        {"lambda_rel": float("inf")},
        {"beta": 1.0},
        {"beta": -0.1},
        {"beta": float("nan")},
        {"lambda_abs": 0.0},
        {"t_start": -1},
        {"init": "zeros"},
        {"init": "threshold", "t_start": 0},
        {"init": "constant", "init_value": -2.0},
        {"init_value": 0.5},
        {"nonfinite": "ignore"},
    ],
    ids=str,
)
def test_argument_out_of_range_is_named(arguments):
    name = list(arguments)[-1]
    with pytest.raises(ValueError, match=name) as error:
        ClipGradByAdaGC(**arguments)
    assert repr(arguments[name]) in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"lambda_rel": "1.04"},
        {"beta": None},
        {"lambda_abs": True},
        {"t_start": 10.0},
        {"t_start": True},
        {"t_start": "100"},
        {"strict": 1},
    ],
    ids=str,
)
def test_argument_of_the_wrong_type_is_named(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(TypeError, match=name) as error:
        ClipGradByAdaGC(**arguments)
    assert repr(value) in str(error.value)


def test_is_not_a_global_norm_clip_which_fleet_would_replace():
    assert not isinstance(ClipGradByAdaGC(), paddle.nn.ClipGradByGlobalNorm)
    assert isinstance(ClipGradByAdaGC(), paddle.nn.clip.ClipGradBase)


@pytest.mark.parametrize("make", [ClipGradByAdaGC, partial(make_clip, "adagc")])
def test_factor_that_lets_gamma_only_shrink_is_warned_of(make):
    with pytest.warns(UserWarning, match=r"lambda_rel=0\.5: gamma can only"):
        make(lambda_rel=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(lambda_rel=1.001)


def test_t_start_zero_takes_the_first_norm_and_does_not_clip():
    clip = ClipGradByAdaGC(t_start=0, lambda_abs=1e-3)
    parameters = make_parameters([[2]])
    clipped = clip_arrays(clip, parameters, [np.float32([3.0, 4.0])])
    np.testing.assert_array_equal(clipped[0], [3.0, 4.0])
    np.testing.assert_array_equal(gammas(clip), [5.0])


def test_mixture_of_experts_without_tokens_in_the_warm_up_stays_trainable():
    rng = np.random.default_rng(0)
    norms = rng.uniform(0.5, 1.0, (60, 40)) * (rng.random((60, 40)) < 0.2)
    clip = ClipGradByAdaGC(t_start=20)
    out, gamma = feed(clip, norms.tolist())
    assert np.isfinite(out).all()
    assert (np.array(out)[norms > 0] > 0).all()
    assert (np.array(gamma[-1]) > 0.1).all()
