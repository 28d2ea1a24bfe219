# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC with a margin of mean absolute deviations (lambda_dev)."""

import numpy as np
import pytest
from helpers import clip_arrays, gammas, make_parameters
from reference.adagc import adagc_with_deviation_step

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.state import load_state, save_state

SHAPES = [[7, 5], [5], [3, 4, 2], [1]]


def random_gradients(rng, step):
    grads = [rng.normal(size=shape) for shape in SHAPES]
    if step % 7 == 3:
        grads[step % len(grads)] *= 50
    return grads


def deviations(clip):
    return np.array([float(v) for v in clip.state_dict()["deviation"].values()])


@pytest.mark.parametrize(
    "start",
    [
        {"t_start": 0},
        {"t_start": 5},
        {"t_start": 40},
        {"t_start": 5, "lambda_rel": 0.9},
        {"init": "constant", "init_value": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("lambda_dev", [0.5, 3.0])
def test_equals_the_numpy_twin(start, lambda_dev):
    values = {
        "lambda_rel": 1.04,
        "beta": 0.95,
        "lambda_abs": 1.0,
        "lambda_dev": lambda_dev,
        **start,
    }
    rng = np.random.default_rng(0)
    clip = ClipGradByAdaGC(strict=True, **values)
    parameters = make_parameters(SHAPES)
    gamma = deviation = None
    if values.pop("init", None):
        gamma = [values.pop("init_value")] * len(SHAPES)
        values["t_start"] = 0
    for t in range(100):
        grads = random_gradients(rng, t)
        expected, gamma, deviation = adagc_with_deviation_step(
            t, grads, gamma, deviation, **values
        )
        got = clip_arrays(clip, parameters, grads)
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        np.testing.assert_allclose(gammas(clip), gamma, rtol=1e-5)
        np.testing.assert_allclose(deviations(clip), deviation, rtol=1e-4)


@pytest.mark.parametrize("t_start", [1, 10])
@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_norm_that_says_nothing_leaves_the_deviation(value, t_start):
    clip = ClipGradByAdaGC(t_start=t_start, lambda_dev=1.0)
    (parameter,) = make_parameters([[1]])
    for norm in (1.0, 0.5, 0.8):
        clip_arrays(clip, [parameter], [np.full(1, norm)])
    before = deviations(clip)
    assert before > 0
    clip_arrays(clip, [parameter], [np.full(1, value)])
    assert deviations(clip) == before


def run(clip, norms):
    """Clipped norms of one tensor's series of norms."""
    (parameter,) = make_parameters([[1]])
    return np.array(
        [
            clip_arrays(clip, [parameter], [np.full(1, norm)])[0][0]
            for norm in norms
        ]
    )


def test_usual_norms_pass_and_an_outlier_does_not():
    rng = np.random.default_rng(0)
    norms = 1.0 + 0.3 * np.abs(rng.normal(size=600))
    norms[550] = 100.0
    plain = run(ClipGradByAdaGC(lambda_abs=10.0), norms)
    wide = run(ClipGradByAdaGC(lambda_abs=10.0, lambda_dev=4.0), norms)
    calm = np.r_[300:550, 551:600]
    assert np.mean(plain[calm] < 0.999 * norms[calm]) > 0.3
    assert np.mean(wide[calm] < 0.999 * norms[calm]) < 0.05
    assert wide[550] < 2.5


def test_gamma_follows_norms_that_grow():
    norms = np.r_[np.ones(100), np.full(400, 5.0)]
    norms *= 1 + 0.1 * np.random.default_rng(0).normal(size=500)
    plain, wide = (
        ClipGradByAdaGC(lambda_abs=100.0),
        ClipGradByAdaGC(lambda_abs=100.0, lambda_dev=4.0),
    )
    run(plain, norms)
    run(wide, norms)
    assert gammas(plain)[0] < 1.2
    assert gammas(wide)[0] == pytest.approx(5.0, rel=0.1)


def test_off_is_algorithm_1_without_further_state():
    clip = ClipGradByAdaGC(t_start=1)
    parameters = make_parameters([[2]])
    for _ in range(2):
        clip_arrays(clip, parameters, [np.ones(2)])
    assert clip.state_dict().keys() == {"step", "gamma", "config"}
    (tensor,) = clip.metrics()["tensors"].values()
    assert tensor.keys() == {"norm", "gamma", "h"}


def test_state_resumes_bit_equal_and_can_be_switched(tmp_path):
    rng = np.random.default_rng(1)
    series = [random_gradients(rng, t) for t in range(30)]
    parameters = make_parameters(SHAPES)
    clip = ClipGradByAdaGC(t_start=5, lambda_dev=2.0)
    for grads in series[:20]:
        clip_arrays(clip, parameters, grads)
    save_state(clip.state_dict(), tmp_path)
    state = load_state(tmp_path)

    again = ClipGradByAdaGC(t_start=5, lambda_dev=2.0)
    again.set_state_dict(state)
    for grads in series[20:]:
        clip_arrays(clip, parameters, grads)
        clip_arrays(again, parameters, grads)
    np.testing.assert_array_equal(gammas(again), gammas(clip))
    np.testing.assert_array_equal(deviations(again), deviations(clip))

    plain = ClipGradByAdaGC(t_start=5)
    with pytest.warns(UserWarning, match="lambda_dev"):
        plain.set_state_dict(state)
    assert "deviation" not in plain.state_dict()
    with pytest.warns(UserWarning, match="lambda_dev"):
        again.set_state_dict(plain.state_dict())
    assert not deviations(again).any()


@pytest.mark.parametrize(
    ("deviation", "message"),
    [({"a": -1.0}, "deviation of 'a'"), ({"b": 1.0}, "lacks \\['a', 'b'\\]")],
)
def test_broken_state_is_refused(deviation, message):
    clip = ClipGradByAdaGC(lambda_dev=1.0)
    state = {
        "step": 3,
        "gamma": {"a": 1.0},
        "deviation": deviation,
        "config": {},
    }
    with pytest.raises(ValueError, match=message):
        clip.set_state_dict(state)
    assert clip.num_steps == 0


@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_bad_argument(value):
    with pytest.raises(ValueError, match="lambda_dev"):
        ClipGradByAdaGC(lambda_dev=value)
