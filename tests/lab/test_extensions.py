# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC with margins of mean deviations; the robust preset."""

import math
from functools import partial

import numpy as np
import pytest
from adagc_lab.extensions import (
    DeviationAdaGC,
    ReleaseAdaGC,
    RobustAdaGC,
    make_clip,
)
from helpers import assert_equal, clip_arrays, feed, make_parameters
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.adagc import adagc_step

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.state import load_state, save_state

SHAPES = [[7, 5], [5], [3, 4, 2], [1]]
(PARAMETER,) = make_parameters([[1]])


def run(clip, norms):
    """Clipped norms of one tensor's series of norms."""
    return np.array(
        [clip_arrays(clip, [PARAMETER], [np.full(1, x)])[0][0] for x in norms]
    )


def kept(clip, name="outliers"):
    return np.array([float(v) for v in clip.state_dict()[name].values()])


def deviation_step(
    t, norms, gamma, spread, lambda_rel, beta, lambda_abs, t_start, lambda_dev
):
    """Clipped norms, with a margin of ``lambda_dev`` mean deviations.

    ``gamma`` and ``spread`` are arrays; gamma is None before the first step.
    """
    if t < t_start or gamma is None:
        clipped, new = np.array(
            adagc_step(t, norms, gamma, lambda_rel, beta, lambda_abs, t_start)
        )
    else:
        margin = np.maximum(lambda_rel * gamma, gamma + lambda_dev * spread)
        clipped = np.minimum(norms, margin)
        new = beta * gamma + (1 - beta) * clipped
    change = 0.0 if gamma is None else np.abs(clipped - gamma)
    return clipped, new, beta * spread + (1 - beta) * change


def robust_step(t, norms, gamma, outliers, lambda_abs, t_start):
    """The robust preset: lambda_rel 2, beta 0.99, and few outliers doubted."""
    clipped, new_gamma = adagc_step(
        t, norms, gamma, 2.0, 0.99, lambda_abs, t_start
    )
    if t < t_start or gamma is None:
        return clipped, new_gamma, outliers
    h = clipped / norms
    doubt = np.clip(9.0 - outliers, 0.0, 1.0)
    passed = (doubt * h**4 + (1.0 - doubt) * h) * norms
    return passed, new_gamma, 0.98 * outliers + 1.0 - h**4


CASES = [
    (
        DeviationAdaGC,
        deviation_step,
        "deviation",
        {"beta": 0.9, "lambda_abs": 6.0, "lambda_dev": lambda_dev, **values},
    )
    for lambda_dev in (0.5, 3.0)
    for values in (
        {"t_start": 0, "lambda_rel": 1.04},
        {"t_start": 5, "lambda_rel": 1.04},
        {"t_start": 40, "lambda_rel": 0.9},
    )
]
CASES += [
    (RobustAdaGC, robust_step, "outliers", {"t_start": n, "lambda_abs": 1.0})
    for n in (0, 5, 40)
]


@pytest.mark.parametrize(("make", "step", "name", "values"), CASES)
def test_equals_the_numpy_twin(make, step, name, values):
    clip = make(strict=True, **values)
    norms = np.random.default_rng(0).lognormal(sigma=0.7, size=(150, 4))
    norms[60:90, 1] *= 20
    clipped, found = feed(clip, norms)
    gamma, count = None, np.zeros(4)
    for t, row in enumerate(norms):
        expected, gamma, count = step(t, row, gamma, count, **values)
        np.testing.assert_allclose(clipped[t], expected, rtol=2e-5)
        np.testing.assert_allclose(found[t], gamma, rtol=2e-5)
    np.testing.assert_allclose(kept(clip, name), count, rtol=1e-4, atol=1e-5)
    assert max(count) > (name == "outliers")


DEVIATION = partial(DeviationAdaGC, lambda_dev=1.0)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
@pytest.mark.parametrize(
    ("make", "t_start", "norms", "name"),
    [
        (DEVIATION, 1, [1.0, 0.5], "deviation"),
        (DEVIATION, 9, [1.0, 0.5], "deviation"),
        (RobustAdaGC, 1, [1.0, 9.0, 9.0], "outliers"),
    ],
)
def test_a_norm_that_says_nothing_changes_nothing(
    value, make, t_start, norms, name
):
    clip = make(t_start=t_start)
    run(clip, norms)
    before = kept(clip, name)
    assert before > 0
    run(clip, [value])
    assert kept(clip, name) == before


@given(*[st.floats(2**-10, 2**10, width=32)] * 2, st.floats(0, 50, width=16))
@settings(deadline=None, max_examples=15)
def test_no_tensor_freezes(norm, gamma, count):
    """Constant norms pass soon, from any state: gamma grows by 1% a step."""
    clip = RobustAdaGC(t_start=1)
    key = PARAMETER.name
    state = {"step": 5, "gamma": {key: gamma}, "outliers": {key: count}}
    clip.set_state_dict({**state, "config": {}})
    growth = math.log(max(norm / (2 * gamma), 1)) / math.log(1.01)
    passed = run(clip, [norm] * (math.ceil(growth) + 2))
    assert passed[-1] == np.float32(norm)


def test_state_resumes_bit_equal_and_can_be_switched(tmp_path):
    rng = np.random.default_rng(1)
    series = [
        [rng.normal(size=shape) * 5 ** (t % 3) for shape in SHAPES]
        for t in range(30)
    ]
    parameters = make_parameters(SHAPES)
    clip = RobustAdaGC(t_start=5)
    for grads in series[:20]:
        clip_arrays(clip, parameters, grads)
    save_state(clip.state_dict(), tmp_path)
    state = load_state(tmp_path)

    again = RobustAdaGC(t_start=5)
    again.set_state_dict(state)
    for grads in series[20:]:
        left = clip_arrays(clip, parameters, grads)
        assert_equal(clip_arrays(again, parameters, grads), left)
    np.testing.assert_array_equal(kept(again), kept(clip))
    assert kept(clip).any()

    plain = ClipGradByAdaGC(t_start=5)
    with pytest.raises(ValueError, match="'preset'"):
        plain.set_state_dict(state)
    clip_arrays(plain, parameters, series[0])
    with pytest.warns(UserWarning, match="lambda_rel"):
        again.set_state_dict(plain.state_dict())
    assert not kept(again).any()


def test_configs_name_them():
    for neutral in ({}, {"preset": "paper"}, {"lambda_dev": 0.0}):
        assert type(make_clip("adagc", **neutral)) is ClipGradByAdaGC
    clip = make_clip("adagc", preset="robust", t_start=7)
    assert (type(clip), clip.lambda_rel, clip.t_start) == (RobustAdaGC, 2.0, 7)
    assert make_clip("adagc", preset="robust", lambda_rel=3).lambda_rel == 3.0
    clip = make_clip("adagc", lambda_dev=2, t_start=7)
    assert (type(clip), clip.lambda_dev, clip.t_start) == (DeviationAdaGC, 2, 7)


ROBUST, OVERRIDES = {"preset": "robust"}, {"a": {"beta": 0.5}}


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("adagc", {"preset": "Robust"}, "preset must be one of paper, robust"),
        ("adagc", ROBUST | {"lamda_abs": 1}, "no 'lamda_abs', did you mean"),
        ("global_norm", ROBUST, "takes no 'preset'"),
        ("adagc", {"lambda_dev": -1.0}, "lambda_dev must not be negative"),
        ("global_norm", {"lambda_dev": 1.0}, "takes no 'lambda_dev'"),
        ("adagc", ROBUST | {"lambda_dev": 1.0}, "give one of them"),
        ("adagc", {"lambda_dev": 1, "overrides": OVERRIDES}, "values of its o"),
    ],
)
def test_wrong_configs(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_clip(name, **arguments)


def test_release_is_adam_whose_second_moment_saw_the_norms():
    """Adam's steps on the clipped series, in float64."""
    rng = np.random.default_rng(1)
    norms = np.exp(0.3 * rng.normal(size=400))
    norms[60] *= 1e3
    norms[100:200] *= 30
    norms = norms.astype(np.float32)
    arguments = {"t_start": 10, "lambda_abs": 1e9}
    passed = run(ReleaseAdaGC(**arguments), norms)
    clipped = run(ClipGradByAdaGC(**arguments), norms)
    gamma = [np.inf]
    plain = ClipGradByAdaGC(**arguments)
    for norm in norms:
        run(plain, [norm])
        gamma += [float(*plain.state_dict()["gamma"].values())]
    counted = np.maximum(clipped, np.minimum(norms, 10 * np.array(gamma[:-1])))
    first = wanted = actual = moment = 0.0
    for t in range(len(norms)):
        first = 0.9 * first + 0.1 * clipped[t]
        wanted = 0.999 * wanted + 0.001 * float(counted[t]) ** 2
        moment = 0.9 * moment + 0.1 * passed[t]
        actual = 0.999 * actual + 0.001 * float(passed[t]) ** 2
        factor = passed[t] / clipped[t]
        assert factor**2 / actual == pytest.approx(1 / wanted, rel=1e-4)
    assert moment / actual**0.5 == pytest.approx(first / wanted**0.5, rel=0.1)
    np.testing.assert_array_equal(passed[:10], clipped[:10])
    own = passed / clipped
    assert 0.7 < own[61] / own[59] < 1
    assert own[199] / own[99] < 0.4
