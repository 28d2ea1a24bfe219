# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A bad step in the warm-up."""

import numpy as np
import pytest
from helpers import clip_arrays, gammas, make_parameters
from reference.adagc import voted_warm_up

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.state import load_state, save_state

NUM_TENSORS, T_START = 12, 40


def usual_norms(seed=0, num_steps=T_START):
    """Norms of a calm start: they halve, each with a spread of 20%."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.normal(size=NUM_TENSORS))
    trend = np.linspace(1.0, 0.5, num_steps)[:, None]
    return trend * size * np.exp(0.2 * rng.normal(size=(num_steps, 1)))


def run(clip, norms):
    """Feed one-element tensors; gives gamma after each step."""
    parameters = make_parameters([[1]] * len(norms[0]))
    history = []
    for row in norms:
        clip_arrays(clip, parameters, [np.float32([n]) for n in row])
        history.append(gammas(clip))
    return np.array(history)


def one_tensor(factor):
    def spoil(norms):
        norms[3] *= factor

    return spoil


def all_tensors(norms):
    norms *= 1e-6


FAULTS = {
    "one tensor x 1e6": one_tensor(1e6),
    "one tensor x 1e3": one_tensor(1e3),
    "one tensor x 2**56": one_tensor(2.0**56),
    "all x 1e-6": all_tensors,
}


def spoiled(spoil, steps):
    norms = usual_norms()
    for step in steps:
        spoil(norms[step])
    return norms


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "steps", [[0], [1], [20], [39], [0, 1, 2, 3, 4], [20, 21, 22, 23, 24]]
)
def test_bad_warm_up_steps_do_not_set_gamma(fault, steps):
    norms = spoiled(FAULTS[fault], steps)
    clean = run(ClipGradByAdaGC(t_start=T_START), usual_norms())[-1]
    robust = run(ClipGradByAdaGC(t_start=T_START), norms)[-1]
    strict = run(ClipGradByAdaGC(t_start=T_START, strict=True), norms)[-1]
    np.testing.assert_allclose(robust, clean, rtol=0.2)
    assert np.median(strict / clean) < 0.01


@pytest.mark.parametrize("init", ["min_no_warmup", "threshold"])
def test_other_starts_are_the_paper_s(init):
    norms = spoiled(all_tensors, [20])
    for strict in (False, True):
        clip = ClipGradByAdaGC(t_start=T_START, init=init, strict=strict)
        at_fault = run(clip, norms)[20]
        np.testing.assert_allclose(
            at_fault, np.minimum(norms[20], 0.1), rtol=1e-6
        )


def test_calm_warm_up_is_the_letter_bit_for_bit():
    norms = usual_norms()
    norms[0] *= 300
    norms[1] *= 20
    robust = run(ClipGradByAdaGC(t_start=T_START), norms)
    strict = run(ClipGradByAdaGC(t_start=T_START, strict=True), norms)
    np.testing.assert_array_equal(robust, strict)


@pytest.mark.usefixtures("backend")
def test_equals_the_numpy_twin():
    rng = np.random.default_rng(5)
    num_replaced = 0
    for seed in range(10):
        norms = usual_norms(seed)
        norms[rng.random(norms.shape) < 0.1] = 0
        norms[rng.random(norms.shape) < 0.02] = np.nan
        for step in np.flatnonzero(rng.random(T_START) < 0.4):
            norms[step] *= 10.0 ** rng.integers(-6, 2)
        norms = norms.astype(np.float32)
        got = run(ClipGradByAdaGC(t_start=T_START, lambda_abs=3.0), norms)
        expected = voted_warm_up(norms.astype(np.float64), 3.0)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        num_replaced += np.any(expected[1:] > expected[:-1])
    assert num_replaced >= 5


def test_lasting_fall_of_the_norms_is_followed():
    norms = usual_norms()
    norms[20:] *= 0.01
    history = run(ClipGradByAdaGC(t_start=T_START, lambda_abs=100.0), norms)
    np.testing.assert_allclose(history[-1], norms[31:].min(0), rtol=1e-6)


def test_step_without_any_norm_does_not_vote():
    norms = usual_norms()
    norms[:12] = np.nan
    all_tensors(norms[12])
    history = run(ClipGradByAdaGC(t_start=T_START), norms)
    clean = run(ClipGradByAdaGC(t_start=T_START), usual_norms()[13:])
    np.testing.assert_array_equal(history[-1], clean[-1])


@pytest.mark.parametrize("stop", [1, 3, 20])
def test_resumes_bit_equal_in_the_middle_of_the_warm_up(tmp_path, stop):
    norms = spoiled(one_tensor(1e6), [0, 1, 2, 20])
    whole = run(ClipGradByAdaGC(t_start=T_START), norms)
    parameters = make_parameters([[1]] * NUM_TENSORS)
    clip = ClipGradByAdaGC(t_start=T_START)
    for step, row in enumerate(norms):
        if step == stop:
            save_state(clip.state_dict(), tmp_path)
            clip = ClipGradByAdaGC(t_start=T_START)
            clip.set_state_dict(load_state(tmp_path))
        clip_arrays(clip, parameters, [np.float32([n]) for n in row])
    np.testing.assert_array_equal(gammas(clip), whole[-1])


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


def test_metrics_do_not_show_the_votes():
    clip = ClipGradByAdaGC()
    run(clip, usual_norms()[:2])
    row = next(iter(clip.metrics()["tensors"].values()))
    assert [*row] == ["norm", "gamma", "h"]
