# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``ClipGradByAdaGC(overrides=...)``: values of single tensors."""

import re

import numpy as np
import paddle
import pytest
from core.named_tensors import SIZES, bound_clip, gradients
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC


@pytest.mark.parametrize(
    "overrides",
    [
        {r"\.router\.": {"lambda_rel": 1.5}},
        {r"\.router\.": {"lambda_rel": 2.0, "beta": 0.5}, "embed": None},
        {"^norm$": {"beta": 0.99}, "mlp": {"lambda_rel": 0.9}},
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["host", "cuda"], indirect=True)
def test_each_tensor_is_clipped_as_by_a_clip_of_its_values(overrides, backend):
    """To a rounding: some processors miss the last bit of a division."""
    values = {"lambda_rel": 1.04, "beta": 0.9, "t_start": 5, "lambda_abs": 6.0}
    own = [
        next((v for p, v in overrides.items() if re.search(p, key)), {})
        for key in SIZES
    ]
    clip, parameters = bound_clip(overrides=overrides, **values)
    twins = [bound_clip(**{**values, **(mine or {})}) for mine in own]
    for _, others in twins:
        for other, mine in zip(others, own, strict=True):
            other.need_clip = mine is not None
    for step in range(20):
        got = clip_arrays(clip, parameters, gradients(step))
        for i, (twin, others) in enumerate(twins):
            expected = clip_arrays(twin, others, gradients(step))
            np.testing.assert_allclose(got[i], expected[i], rtol=1e-6)


def test_without_bind_it_is_refused_in_the_second_step():
    clip = ClipGradByAdaGC(overrides={"router": None})
    parameters = make_parameters([[2], [2]])
    groups = [{"params": [parameter]} for parameter in parameters]
    optimizer = paddle.optimizer.SGD(0.1, parameters=groups, grad_clip=clip)
    for parameter in parameters:
        parameter.grad = paddle.ones([2])
    optimizer.step()
    with pytest.raises(ValueError, match=r"matches no tensor.*bind\(model\)"):
        optimizer.step()


def test_a_state_that_is_edited_leaves_the_clip_as_it_is():
    clip = ClipGradByAdaGC(overrides={"weight": {"beta": 0.5}})
    clip.state_dict()["config"]["overrides"]["weight"]["beta"] = 0.1
    assert clip.overrides.by_pattern == {"weight": {"beta": 0.5}}


def test_a_new_default_is_that_of_the_other_tensors():
    parameters = make_parameters([[1], [1]])
    pattern = re.escape(parameters[0].name) + "$"
    clip = ClipGradByAdaGC(t_start=0, overrides={pattern: {"lambda_rel": 1.2}})
    clip_arrays(clip, parameters, [np.float32([1])] * 2)
    for factor, expected in ((1.04, [1.2, 1.04]), (3.0, [1.2, 3.0])):
        clip.lambda_rel, clip.beta = factor, 1 - 1e-6
        scaled = clip_arrays(clip, parameters, [np.float32([10])] * 2)
        np.testing.assert_allclose(np.ravel(scaled), expected, rtol=1e-4)
