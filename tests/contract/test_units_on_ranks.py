# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Units of parameters that sharding leaves whole, or that a rank gets wrong."""

import numpy as np
import paddle
import pytest
from core.parallel.simulated import Ranks, along
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.units import Units

SHAPE = (4, 6)
UNITS = Units(parts=["q", "k"]).of("stack", SHAPE)


def bound(parameter, **marks):
    clip = ClipGradByAdaGC(t_start=1)
    layout = TensorLayout(key="stack", shape=SHAPE, units=UNITS, **marks)
    clip._progress.tensors.bind({parameter.name: layout})
    return clip


@pytest.mark.parametrize("splits", [False, True])
def test_stage_3_may_leave_a_parameter_with_units_whole(monkeypatch, splits):
    def work(rank):
        (parameter,) = make_parameters([SHAPE])
        clip = bound(parameter, is_whole=splits)
        given = [np.ones(SHAPE), np.full(SHAPE, 8.0)]
        clipped = [clip_arrays(clip, [parameter], [g])[0] for g in given]
        return np.stack(clipped).tolist()

    options = {"is_stage_3": True, "splits_parameters": True}
    axes = along("sharding", **options) if splits else along("data")
    first, second = Ranks(monkeypatch, axes).run(work)
    assert first == second
    norm = 1 / np.sqrt(24)  # in the warm-up, 1 over both units
    np.testing.assert_allclose(first[1], 1.04 * norm, rtol=1e-5)


WRONG = {
    "gradient": ([14], [2, 7], "gradient of stack has the shape"),
    "parameter": ([2, 7], [2, 7], r"stack has the shape \[2, 7\], and had"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_shape_of_one_rank_is_an_error_on_all(monkeypatch, what):
    """The others wait for the length of its slice."""
    *wrong, message = WRONG[what]

    def work(rank):
        shape, of_gradient = ([10], [10]) if rank == 0 else wrong
        (parameter,) = make_parameters([shape])
        clip = bound(parameter)
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                clip_arrays(clip, [parameter], [np.ones(of_gradient)])
        return clip.num_steps

    axes = along("sharding", splits_parameters=True)
    assert Ranks(monkeypatch, axes).run(work) == [0, 0]


def test_units_that_one_rank_refuses_are_refused_by_all(monkeypatch):
    """Two patterns match a tensor that one pipeline stage has."""

    def work(rank):
        model = paddle.nn.Linear(4, 4, bias_attr=False)
        if rank:
            model = paddle.nn.LayerDict({"qkv": model})
        units = {"weight": {"parts": ["a", "b"]}, "qkv": {"parts": ["a", "b"]}}
        with pytest.raises(ValueError, match=r"qkv\.weight") as refused:
            ClipGradByAdaGC().bind(model, units=units)
        return str(refused.value)

    axes = along("pipe")
    others, its_own = Ranks(monkeypatch, axes).run(work)
    assert others == f"rank 1 cannot bind: {its_own}"


def test_no_unit_lies_in_an_axis_of_length_0():
    with pytest.raises(ValueError, match=r"w of shape \[4, 0\] has no axis"):
        Units(parts=["q", "k"]).of("w", [4, 0])


def test_a_second_model_has_to_match_every_pattern_itself():
    clip = ClipGradByAdaGC(overrides={"head": None})
    clip.bind(paddle.nn.LayerDict({"head": paddle.nn.Linear(2, 2)}))
    model = paddle.nn.LayerDict({"tail": paddle.nn.Linear(2, 2)})
    clip.bind(model)
    parameters = [*model.parameters()]
    gradients = [np.ones(p.shape) for p in parameters]
    with pytest.raises(ValueError, match="'head' matches no tensor"):
        clip_arrays(clip, parameters, gradients)
