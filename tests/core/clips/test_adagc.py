# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC's own: how gamma starts, votes of the warm-up, what is warned of."""

import math
from functools import partial

import numpy as np
import paddle
import pytest
from helpers import assert_equal, clip_arrays, feed, gammas, make_parameters
from reference.adagc import voted_warm_up, warmup_ema

from paddle_adagc import ClipGradByAdaGC, load_state, save_state

pytestmark = pytest.mark.usefixtures("backend")
# The warm-up's rule is the same code on all of them.
ONE_BACKEND = pytest.mark.parametrize("backend", ["host"], indirect=True)


def test_a_small_norm_after_a_large_one_is_no_zero():
    norms = [[1.0], [1e-9], [1.0]]
    clip = ClipGradByAdaGC(t_start=0, beta=0.0, lambda_rel=2.0)
    for found in feed(clip, norms):
        np.testing.assert_allclose(found, [[1.0], [1e-9], [2e-9]], rtol=1e-6)


def test_is_not_a_global_norm_clip_which_fleet_would_replace():
    assert not isinstance(ClipGradByAdaGC(), paddle.nn.ClipGradByGlobalNorm)
    assert isinstance(ClipGradByAdaGC(), paddle.nn.clip.ClipGradBase)


def test_factor_that_lets_gamma_only_shrink_is_warned_of(recwarn):
    make = ClipGradByAdaGC
    with pytest.warns(UserWarning, match=r"lambda_rel=0\.5: gamma can only"):
        make(lambda_rel=0.5)
    with pytest.warns(UserWarning, match=r"lambda_rel=0\.9: gamma"):
        make(overrides={"norm": {"lambda_rel": 0.9}})
    make(lambda_rel=1.001)
    assert not recwarn.list


NUM_TENSORS, T_START = 12, 40


def usual_norms(seed=0):
    """Norms of a calm start: they halve, each with a spread of 20%."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.normal(size=NUM_TENSORS))
    trend = np.linspace(1.0, 0.5, T_START)[:, None]
    return trend * size * np.exp(0.2 * rng.normal(size=(T_START, 1)))


def run(clip, norms):
    """Gammas after each step, [num_steps, num_tensors]."""
    return np.array(feed(clip, norms)[1])


@pytest.mark.parametrize("init", ["warmup_min", "warmup_ema"])
@ONE_BACKEND
def test_votes_equal_the_numpy_twin(init):
    rng = np.random.default_rng(5)
    num_replaced = 0
    for seed in range(10):
        norms = usual_norms(seed)
        norms[rng.random(norms.shape) < 0.1] = 0
        norms[rng.random(norms.shape) < 0.02] = np.nan
        for step in np.flatnonzero(rng.random(T_START) < 0.4):
            norms[step] *= 10.0 ** rng.integers(-6, 2)
        norms = norms.astype(np.float32)
        arguments = {"init": init, "t_start": T_START, "lambda_abs": 3.0}
        got = run(ClipGradByAdaGC(**arguments), norms)
        window = T_START if init == "warmup_ema" else None
        expected = voted_warm_up(norms.astype(np.float64), 3.0, window)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        num_replaced += np.any(expected[1:] > expected[:-1])
    assert num_replaced >= 5


RISING = {"init": "warmup_ema", "t_start": 20, "lambda_rel": 1.25}


@pytest.mark.parametrize("resumed_at", [5, 40])
def test_warmup_ema_equals_its_twin_and_ends_in_algorithm_1(
    resumed_at, tmp_path
):
    """From step 20 / 0.25 on; the CUDA kernel applies from there on, too."""
    rng = np.random.default_rng(2)
    norms = np.exp(0.4 * rng.normal(size=(120, 3))) * [1.0, 0.1, 3.0]
    norms = norms.astype(np.float32)
    clip = ClipGradByAdaGC(**RISING)
    parameters = make_parameters([[1]] * 3)
    scales, gamma = warmup_ema(norms, 1.25, 0.99, 1.0, 20)
    for step, row in enumerate(norms):
        if step == resumed_at:
            save_state(clip.state_dict(), tmp_path)
            clip = ClipGradByAdaGC(**RISING)
            clip.set_state_dict(load_state(tmp_path))
        if step == 80:
            paper = ClipGradByAdaGC(t_start=20, lambda_rel=1.25)
            with pytest.warns(UserWarning, match="init"):
                paper.set_state_dict(clip.state_dict())
        out = clip_arrays(clip, parameters, [np.float32([n]) for n in row])
        np.testing.assert_allclose(np.ravel(out), scales[step] * row, 2e-6)
        np.testing.assert_allclose(gammas(clip), gamma[step], rtol=2e-6)
        if step >= 80:
            clip_arrays(paper, parameters, [np.float32([n]) for n in row])
            np.testing.assert_allclose(gammas(paper), gammas(clip), 2e-7)


@pytest.mark.parametrize("init", ["warmup_min", "warmup_ema"])
def test_t_start_may_be_raised_after_the_warm_up(init):
    """A bad step does not set gamma in what is left of it, either."""
    clip = ClipGradByAdaGC(t_start=3, init=init)
    parameters = make_parameters([[1], [1]])
    usual = np.float32([[0.1], [0.2]])
    for _ in range(5):
        clip_arrays(clip, parameters, [*usual])
    before = gammas(clip)
    clip.t_start = 20
    for step in range(12):
        factor = 1e-6 if step == 5 else 1.0
        clip_arrays(clip, parameters, [*(factor * usual)])
    np.testing.assert_allclose(gammas(clip), before, rtol=0.3)


def test_gamma_of_a_state_without_votes_is_settled():
    parameters = make_parameters([[1]] * NUM_TENSORS)
    old = ClipGradByAdaGC(t_start=T_START, strict=True)
    rows = [[np.float32([n]) for n in row] for row in usual_norms()]
    clip_arrays(old, parameters, rows[0])
    state = old.state_dict()
    del state["config"]["strict"]
    clip = ClipGradByAdaGC(t_start=T_START)
    clip.set_state_dict(state)
    before = gammas(clip)
    clip_arrays(clip, parameters, [1e-6 * g for g in rows[1]])
    np.testing.assert_array_equal(gammas(clip), before)
    strict = ClipGradByAdaGC(t_start=T_START, strict=True)
    with pytest.warns(UserWarning, match="strict"):
        strict.set_state_dict(clip.state_dict())
    np.testing.assert_array_equal(gammas(strict), before)


@pytest.mark.parametrize(
    "make",
    [
        partial(ClipGradByAdaGC, t_start=4),
        partial(ClipGradByAdaGC, t_start=4, init="warmup_ema"),
        partial(ClipGradByAdaGC, t_start=0),
        partial(ClipGradByAdaGC, t_start=3, overrides={"w": {"beta": 0.5}}),
    ],
)
@pytest.mark.parametrize("saved_after", [None, 0, 2, 6])
@ONE_BACKEND
def test_restarted_clip_is_a_new_one_that_counts_on(
    make, saved_after, tmp_path
):
    parameters = make_parameters([[3], [4]])
    old, new = make(), make()
    rng = np.random.default_rng(0)
    series = [[rng.normal(size=n) for n in (3, 4)] for _ in range(17)]
    for grads in series[:7]:
        clip_arrays(old, parameters, [100 * g for g in grads])
    old.restart_warmup()
    for step, grads in enumerate(series[7:]):
        if step == saved_after:
            save_state(old.state_dict(), tmp_path)
            old = make()
            state = load_state(tmp_path)
            assert state["config"] == old.arguments()
            old.set_state_dict(state)
            assert old.num_steps == 7 + step
        assert_equal(
            clip_arrays(old, parameters, grads),
            clip_arrays(new, parameters, grads),
        )
    assert old.num_steps == 17
    assert old.metrics()["step"] == 16
    assert old.state_dict()["warmup_start"] == 7
    assert "warmup_start" not in new.state_dict()


def test_a_warm_up_may_have_no_bound():
    clip = ClipGradByAdaGC(init="warmup_ema", lambda_abs=math.inf, t_start=3)
    rows = [[30.0, 1.0], [10.0, 2.0], [20.0, 2.0]]
    assert feed(clip, rows)[0] == rows
