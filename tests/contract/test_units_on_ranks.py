# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Units of parameters that sharding leaves whole, or that a rank gets wrong."""

import numpy as np
import paddle
import pytest
from core.parallel.simulated import (
    READ_TOPOLOGY,
    Ranks,
    along,
    expert_topologies,
)
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.layout import TensorLayout, read_layout
from paddle_adagc.parallel.reduce import check_layout
from paddle_adagc.parallel.topology import Topology
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


class Experts(paddle.nn.Layer):
    """A gate, and two experts in one parameter."""

    def __init__(self, **marks):
        super().__init__()
        self.gate = self.create_parameter([3, 3])
        self.up = self.create_parameter([2, 3, 3])
        for name, value in marks.items():
            setattr(self.up, name, value)


def first_step(marks):
    model = Experts(**marks)
    clip = ClipGradByAdaGC()
    clip.bind(model)
    gradients = [np.full(p.shape, 1 / 3) for p in model.parameters()]
    clip_arrays(clip, model.parameters(), gradients)
    return clip.full_state_dict()["gamma"], clip.summary()["global_grad_norm"]


@pytest.mark.parametrize(
    "marks",
    [{"expert": True}, {"color": {"color": "moe_expert"}, "no_sync": False}],
    ids=str,
)
def test_experts_that_fleet_averages_are_no_others_on_data_ranks(
    monkeypatch, marks
):
    gamma, norm = first_step(marks)
    ranks = Ranks(monkeypatch, along("data", 4))
    for its_gamma, its_norm in ranks.run(lambda rank: first_step(marks)):
        assert its_norm == pytest.approx(norm)
        assert its_gamma == pytest.approx(gamma)


def test_a_bind_before_fleet_init_is_refused_with_experts(monkeypatch):
    model = Experts(no_sync=True)
    clip = ClipGradByAdaGC()
    clip.bind(model)
    gradients = [np.ones(p.shape) for p in model.parameters()]
    ranks = Ranks(monkeypatch, along("data"))

    def work(rank):
        with pytest.raises(RuntimeError, match=r"came before fleet\.init"):
            clip_arrays(clip, model.parameters(), gradients)

    ranks.run(work)


@pytest.mark.parametrize("loads", [False, True])
def test_a_first_norm_in_a_later_warm_up_can_be_outvoted(loads):
    """Its gamma was inf, which no step supports."""
    clip = ClipGradByAdaGC(t_start=1)
    parameters = make_parameters([[1], [1]])
    steps = [[1.0, 0.0], [1.0, 0.0], [1.0, 1e-6], *[[1.0, 1.0]] * 19]
    for number, row in enumerate(steps):
        if number == 2 and not loads:
            clip.t_start = 60
        if number == 2 and loads:
            state = clip.state_dict()
            clip = ClipGradByAdaGC(t_start=60)
            clip.set_state_dict(state)
        clip_arrays(clip, parameters, [np.float32([x]) for x in row])
    assert [float(x) for x in clip.state_dict()["gamma"].values()][1] > 0.5


@pytest.mark.parametrize("has_group", [False, True])
def test_experts_that_sharding_would_average_are_refused(has_group):
    """Fleet puts an expert without a group among the dense tensors."""
    (topology, _) = expert_topologies(2, 1)
    parameter = paddle.create_parameter([2, 2], "float32")
    parameter.expert = parameter.no_sync = True
    parameter.color = {"color": "moe_expert"}
    if has_group:
        parameter.color["group"] = object()
    model = paddle.nn.Layer()
    model.add_parameter("experts", parameter)
    layout = [*read_layout(model).values()]
    if has_group:
        check_layout(layout, topology)
    else:
        with pytest.raises(ValueError, match=r"experts.*without a group"):
            check_layout(layout, topology)


def test_sums_that_were_looked_up_before_fleet_are_looked_up_again(
    monkeypatch,
):
    ranks = Ranks(monkeypatch, along("sharding", splits_parameters=True))

    def make(rank):
        (parameter,) = make_parameters([[6]])
        clip = ClipGradByAdaGC(t_start=1)
        layout = TensorLayout(key="weight", shape=(6,))
        clip._progress.tensors.bind({parameter.name: layout})
        clip.summary()
        return clip, parameter

    def step(rank):
        clip, parameter = made[rank]
        clip_arrays(clip, [parameter], [np.full(3, 4.0)])
        return clip.metrics()["global_grad_norm"]

    with monkeypatch.context() as patch:
        patch.setattr(READ_TOPOLOGY, Topology)
        made = ranks.run(make)
    assert ranks.run(step) == pytest.approx([4 * np.sqrt(6)] * 2)
