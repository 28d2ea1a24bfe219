# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC whose clipped norms count in Adam's second moment."""

import numpy as np
import pytest
from adagc_lab.extensions import ReleaseAdaGC, make_clip
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC

(PARAMETER,) = make_parameters([[1]])
RELEASE = {"preset": "release"}


def run(clip, norms):
    """Clipped norms of one tensor's series of norms."""
    return np.array(
        [clip_arrays(clip, [PARAMETER], [np.full(1, x)])[0][0] for x in norms]
    )


def test_configs_name_it():
    for neutral in ({}, {"preset": "paper"}):
        assert type(make_clip("adagc", **neutral)) is ClipGradByAdaGC
    clip = make_clip("adagc", **RELEASE, t_start=7)
    assert (type(clip), clip.t_start) == (ReleaseAdaGC, 7)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("adagc", {"preset": "Release"}, "must be one of paper, release"),
        ("adagc", RELEASE | {"lamda_abs": 1}, "no 'lamda_abs', did you mean"),
        ("global_norm", RELEASE, "takes no 'preset'"),
        ("adagc", {"lambda_dev": 1.0}, "takes no 'lambda_dev'"),
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
