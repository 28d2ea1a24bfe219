# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Clips by one norm: global AdaGC and ZClip."""

import numpy as np
import pytest
from helpers import clip_arrays, feed, gammas, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.global_clips import (
    ClipGradByGlobalAdaGC,
    ClipGradByZClip,
)

pytestmark = pytest.mark.usefixtures("backend")


def test_adagc_s_state_is_refused():
    clip, adagc = ClipGradByGlobalAdaGC(), ClipGradByAdaGC()
    feed(adagc, [[1.0, 1.0]])
    with pytest.raises(ValueError, match="another clip"):
        clip.set_state_dict(adagc.state_dict())
    assert clip.num_steps == 0


def test_non_finite_tensor_is_zeroed_and_left_out():
    parameters = make_parameters([[1], [2]])
    clip = ClipGradByGlobalAdaGC(t_start=0)
    clip_arrays(clip, parameters, [np.zeros(1), np.array([3.0, 4.0])])
    clipped = clip_arrays(
        clip, parameters, [np.array([np.nan]), np.array([3.0, 4.0])]
    )
    np.testing.assert_array_equal(clipped[0], [0.0])
    np.testing.assert_array_equal(clipped[1], [3.0, 4.0])
    np.testing.assert_allclose(gammas(clip), [5.0], rtol=1e-6)


@pytest.mark.parametrize("lost", [np.nan, np.inf, 3e38])
def test_norm_without_a_lost_tensor_is_no_observation(lost):
    parameters = make_parameters([[2], [2]])
    clip = ClipGradByGlobalAdaGC(t_start=3, lambda_abs=100.0)
    usual = [np.array([30.0, 40.0]), np.array([0.1, 0.0])]
    for step in range(6):
        arrays = usual if step % 2 == 0 else [np.full(2, lost), usual[1]]
        clip_arrays(clip, parameters, arrays)
    np.testing.assert_allclose(gammas(clip), [50.0], rtol=1e-4)


def kept_by(clip):
    state = clip.state_dict()
    return {k: float(state[k]["global"]) for k in ("count", "mean", "variance")}


def test_a_step_without_gradient_is_no_observation():
    clip = ClipGradByZClip(warmup_steps=2, max_grad_norm=None)
    parameters = make_parameters([[2]])
    for value in (1.0, 0.0, 3.0):
        (out,) = clip_arrays(clip, parameters, [np.array([value, 0.0])])
        np.testing.assert_array_equal(out, [value, 0.0])
    assert kept_by(clip) == {"count": 2.0, "mean": 2.0, "variance": 1.0}


def test_state_of_format_2_loads():
    clip = ClipGradByZClip()
    norm = {"count": 30.0, "mean": 0.5, "variance": 0.25}
    clip.set_state_dict({"step": 40, "norm": norm, "config": {}})
    assert clip.num_steps == 40
    assert kept_by(clip) == norm


@pytest.mark.parametrize("warmup_steps", [1, 8])
def test_zclip_does_not_observe_a_norm_without_a_lost_tensor(warmup_steps):
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
