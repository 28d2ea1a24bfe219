# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tensors a rank sums over whom, and layouts that give no right norm."""

import paddle
import pytest
from core.parallel.simulated import axis

from paddle_adagc.parallel.layout import TensorLayout, read_layout
from paddle_adagc.parallel.reduce import check_layout, make_plan
from paddle_adagc.parallel.topology import Axis, Topology

DENSE = TensorLayout(key="dense")
EXPERT = TensorLayout(key="expert", is_expert=True)
TWO = axis(0, 0, 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("tensors", "topology"),
    [
        ([DENSE], Topology(model=TWO, data=axis(0, 0, 2))),
        ([DENSE], Topology(sharding=TWO, data=axis(0, 0, 2))),
        ([DENSE], Topology(sharding=TWO, splits_parameters=True)),
        ([DENSE], Topology(data=TWO, splits_parameters=True)),
        ([DENSE], Topology(sep=TWO, data=axis(0, 0, 2), pipe=axis(0, 0, 4))),
        ([DENSE, EXPERT], Topology()),
        ([DENSE, EXPERT], Topology(data=TWO)),
        ([DENSE, EXPERT], Topology(pipe=TWO)),
        ([DENSE, EXPERT], Topology(expert=TWO)),
        (
            [DENSE, EXPERT],
            Topology(expert=TWO, sharding=TWO, splits_parameters=True),
        ),
        (
            [TensorLayout(key="e", is_expert=True, is_expert_on_tp_axis=True)],
            Topology(data=TWO),
        ),
    ],
)
def test_sound_layouts_are_accepted(tensors, topology):
    check_layout(tensors, topology)


def test_experts_split_over_tp_ranks_are_summed_in_their_own_group():
    both = TensorLayout(key="split", is_tp_split=True)
    expert = TensorLayout(key="expert", is_expert=True, is_tp_split=True)
    four = axis(0, 0, 2, 4, 6)
    topology = Topology(
        model=TWO,
        expert=axis(0, 0, 2),
        sharding=four,
        moe_sharding=axis(0, 0, 4),
        splits_parameters=True,
        world=tuple(range(8)),
    )
    plan = make_plan([both, expert], topology)
    assert [(r.name, r.group, r.slots) for r in plan.reductions] == [
        ("sharding", (0, 2, 4, 6), (0,)),
        ("moe_sharding", (0, 4), (1,)),
        ("model", (0, 1), (0,)),
    ]


@pytest.mark.parametrize(
    ("axes", "dense", "expert", "tied"),
    [
        ({}, True, True, False),
        ({"model": 1}, False, True, False),
        ({"sep": 1}, False, True, False),
        ({"data": 1}, False, True, False),
        ({"sharding": 1}, False, True, False),
        ({"pipe": 1}, True, True, False),
        ({"moe_sharding": 1}, True, False, False),
    ],
)
def test_each_tensor_is_counted_by_its_first_rank(axes, dense, expert, tied):
    tensors = [DENSE, EXPERT, TensorLayout(key="tied", is_tied_copy=True)]
    topology = Topology(
        expert=TWO,
        splits_parameters=True,
        world=(0, 1),
        **{name: Axis(rank, 2, (0, 1)) for name, rank in axes.items()},
    )
    plan = make_plan(tensors, topology)
    assert plan.counts == plan.is_first == (dense, expert, tied)


def test_owners_count_what_the_first_of_them_knows():
    topology = Topology(sharding=Axis(1, 2, (0, 1)), world=(0, 1))
    plan = make_plan([DENSE], topology)
    assert (plan.counts, plan.is_first) == ((True,), (False,))


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (
            Topology(sharding=TWO, expert=TWO, world=(0, 1)),
            "sharding V1.*split_param",
        ),
        (
            Topology(sharding=TWO, splits_parameters=True, world=(0, 1)),
            "without expert groups",
        ),
        (
            Topology(model=TWO, world=(0, 1)),
            "tensor-parallel axis",
        ),
    ],
)
def test_layouts_without_a_right_norm_are_refused(topology, message):
    with pytest.raises(ValueError, match=message):
        check_layout([EXPERT], topology)
    with pytest.raises(ValueError, match=message):
        make_plan([EXPERT], topology)


@pytest.mark.parametrize("copies", ["data", "sep"])
def test_copies_of_slices_are_warned_of(copies):
    topology = Topology(
        sharding=TWO,
        splits_parameters=True,
        world=(0, 1, 2, 3),
        **{copies: axis(0, 0, 2)},
    )
    with pytest.warns(UserWarning, match=r"paddle 3\.3\.1 leaves out"):
        check_layout([DENSE], topology)


@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize(
    "marks",
    [
        {"mp_moe": True, "expert": False, "no_sync": False},
        {"color": {"color": "moe_expert"}, "no_sync": False},
    ],
)
def test_experts_of_tensor_parallel_ranks_are_refused(marks, dp):
    model = paddle.nn.Linear(2, 2, bias_attr=False)
    model.weight.is_distributed = True
    for name, value in marks.items():
        setattr(model.weight, name, value)
    layout = list(read_layout(model).values())
    data = axis(0, *range(dp))
    topology = Topology(model=TWO, data=data)
    with pytest.raises(ValueError, match=r"weight.*moe_group mp"):
        check_layout(layout, topology)
    model.weight.is_distributed = False
    check_layout([*read_layout(model).values()], Topology(data=data))


@pytest.mark.parametrize("beside", ["model", "pipe", "sep"])
def test_experts_that_fleet_averages_are_refused(beside):
    model = paddle.nn.Linear(2, 2, bias_attr=False)
    model.weight.no_sync = True
    layout = list(read_layout(model).values())
    pure = Topology(data=TWO, world=(0, 1))
    check_layout(layout, pure)
    topology = Topology(data=axis(0, 0, 2), world=(0, 1, 2, 3), **{beside: TWO})
    with pytest.raises(ValueError, match=r"weight.*fleet ignores no_sync"):
        check_layout(layout, topology)
    check_layout([*read_layout(paddle.nn.Linear(2, 2)).values()], topology)
