# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is measured around any clip, by hand."""

import math

import numpy as np
import paddle
import pytest
from adagc_lab.record import observe
from adagc_lab.record.files import QUANTITIES
from adagc_lab.record.observe import ObservedClip
from helpers import make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.compared import ClipGradByTensorWiseGC

KEYS = ["a", "b", "c", "d", "e"]


def observed(clip, norms):
    """An observed clip after a step; a norm of None is no gradient."""
    parameters = dict(zip(KEYS, make_parameters([[1]] * 5), strict=True))
    for key, parameter in parameters.items():
        parameter.name = key
    around = ObservedClip(clip, parameters)
    pairs = [
        (parameter, paddle.to_tensor([norm]))
        for parameter, norm in zip(parameters.values(), norms, strict=True)
        if norm is not None
    ]
    around(pairs)
    return around


def test_numbers_of_a_step(monkeypatch):
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(observe, "device_seconds", lambda: next(clock))
    clip = ClipGradByTensorWiseGC(lambda_abs=16.0)
    around = observed(clip, [4.0, 3.0, math.inf, 4.0, 0.0])
    assert str(around) == str(clip)
    assert around.step_metrics() == {
        "global_grad_norm": pytest.approx(math.sqrt(41)),
        "clipped_fraction": 0.75,
        "nonfinite": 1,
        "clip_seconds": 2.5,
    }


def test_rows_of_the_record():
    around = observed(ClipGradByAdaGC(lambda_abs=1.0), [3.0, 4.0] + [None] * 3)
    moments = np.arange(10, dtype=np.float32).reshape(2, 5)
    rows = dict(zip(QUANTITIES, around.tensor_rows(moments), strict=True))
    np.testing.assert_array_equal(rows["norm"], [3, 4, 0, 0, 0])
    np.testing.assert_allclose(rows["clipped_norm"], [0.6, 0.8, 0, 0, 0], 1e-6)
    np.testing.assert_allclose(rows["gamma"][:2], [0.6, 0.8], 1e-6)
    assert np.isnan(rows["gamma"][2:]).all()
    np.testing.assert_array_equal(rows["moment2"], moments[1])
    assert np.isnan(around.tensor_rows(None)[3:5]).all()
    nothing = observed(ClipGradByTensorWiseGC(), [None] * 5)
    assert nothing.step_metrics()["clipped_fraction"] == 0.0
