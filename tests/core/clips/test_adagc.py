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
@pytest.mark.parametrize(
    ("arguments", "norms", "last", "gamma"),
    [
        ({"t_start": 3, "lambda_abs": 100.0}, [2, ..., 3], 3, 2),
        ({"t_start": 0, "beta": 0.5}, [2, *[...] * 200], None, 2),
        (
            {"t_start": 0, "beta": 0.5, "lambda_rel": 2.0},
            [2, *[...] * 200, 8],
            4,
            3,
        ),
        ({"t_start": 2, "lambda_rel": 1.0}, [*[...] * 4, 8], 8, 8),
        ({"t_start": 2, "lambda_rel": 1.0}, [*[...] * 4, 8, 16], 8, 8),
        (
            {"t_start": 2, "lambda_rel": 1.0, "beta": 0.5},
            [*[...] * 4, 8, 16, 4],
            4,
            6,
        ),
    ],
    ids=str,
)
def test_zero_or_missing_norm_is_no_norm(
    nothing, arguments, norms, last, gamma
):
    """A tensor first seen after the warm-up starts unclipped."""
    clip = ClipGradByAdaGC(**arguments)
    out, history = feed(
        clip, [[0.5, nothing if n is ... else n] for n in norms]
    )
    assert out[-1][1] == (nothing if last is None else last)
    assert history[-1][1] == gamma


HALVES = {"lambda_rel": 2.0, "beta": 0.5}


@pytest.mark.parametrize(
    ("init", "arguments", "norms", "clipped", "gamma"),
    [
        (
            "min_no_warmup",
            {"t_start": 2, "lambda_rel": 1.0},
            [[30.0], [10.0], [20.0]],
            [[30.0], [10.0], [10.0]],
            [[30.0], [10.0], [10.0]],
        ),
        (
            "constant",
            {"init_value": 0.5, **HALVES},
            [[3.0, 0.25], [1.5, None]],
            [[1.0, 0.25], [1.5, None]],
            [[0.75, 0.375], [1.125, 0.375]],
        ),
        ("constant", {"lambda_rel": 2.0}, [[4.0]], [[2.0]], [[1.01]]),
        *(
            (
                "lambda_abs",
                {"lambda_abs": 0.5, "t_start": 2, **HALVES},
                [[3.0, 4.0], [1e6, 1e-6], [0.25, 4.0], [0.25, nothing]],
                [[0.3, 0.4], [0.5, 5e-13], [0.25, 1.0], [0.25, nothing]],
                [[0.5, 0.5]] * 2 + [[0.375, 0.75], [0.3125, 0.75]],
            )
            for nothing in (0.0, None)
        ),
        (
            "threshold",
            {"t_start": 2, "lambda_rel": 1.0},
            [[0.25, 0.01], [3.0, 0.05], [3.0, 0.05]],
            [[0.25, 0.01], [3.0, 0.05], [0.1, 0.05]],
            [[0.1, 0.01], [0.1, 0.05], [0.1, 0.05]],
        ),
    ],
)
def test_other_starts_by_hand(init, arguments, norms, clipped, gamma):
    out, history = feed(ClipGradByAdaGC(init=init, **arguments), norms)
    got = np.array([out, history], float)  # None becomes NaN
    expected = np.array([clipped, gamma], float)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_is_not_a_global_norm_clip_which_fleet_would_replace():
    assert not isinstance(ClipGradByAdaGC(), paddle.nn.ClipGradByGlobalNorm)
    assert isinstance(ClipGradByAdaGC(), paddle.nn.clip.ClipGradBase)


@pytest.mark.parametrize("make", [ClipGradByAdaGC, partial(make_clip, "adagc")])
def test_factor_that_lets_gamma_only_shrink_is_warned_of(make):
    with pytest.warns(UserWarning, match=r"lambda_rel=0\.5: gamma can only"):
        make(lambda_rel=0.5)
    with pytest.warns(UserWarning, match=r"lambda_rel=0\.9 for 'norm'"):
        make(overrides={"norm": {"lambda_rel": 0.9}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(lambda_rel=1.001)
