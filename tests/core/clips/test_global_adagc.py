# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Global AdaGC is AdaGC on one tensor that holds all of the others."""

import numpy as np
import pytest
from helpers import clip_arrays, gammas, make_parameters
from reference.adagc import adagc_step

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.global_clips import ClipGradByGlobalAdaGC


def test_equals_adagc_on_the_concatenated_gradient():
    values = {"lambda_rel": 1.1, "beta": 0.9, "lambda_abs": 3.0, "t_start": 5}
    clip = ClipGradByGlobalAdaGC(**values)
    parameters = make_parameters([[4], [6]])
    rng = np.random.default_rng(0)
    gamma = None
    for t in range(40):
        whole = rng.normal(size=10) * (30 if t % 9 == 7 else 1)
        expected, gamma = adagc_step(t, [whole], gamma, **values)
        got = clip_arrays(clip, parameters, [whole[:4], whole[4:]])
        np.testing.assert_allclose(np.concatenate(got), expected[0], rtol=1e-6)
        np.testing.assert_allclose(gammas(clip), gamma, rtol=1e-6)


def test_state_resumes_and_adagc_s_state_is_refused():
    parameters = make_parameters([[2], [3]])
    arrays = [np.ones(2), np.ones(3)]
    clip, other = ClipGradByGlobalAdaGC(), ClipGradByGlobalAdaGC()
    clip_arrays(clip, parameters, arrays)
    other.set_state_dict(clip.state_dict())
    assert other.num_steps == 1
    np.testing.assert_array_equal(gammas(other), gammas(clip))

    adagc = ClipGradByAdaGC()
    clip_arrays(adagc, parameters, arrays)
    with pytest.raises(ValueError, match="another clip"):
        other.set_state_dict(adagc.state_dict())
    assert other.num_steps == 1


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
