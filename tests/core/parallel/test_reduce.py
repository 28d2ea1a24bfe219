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
        ([DENSE], Topology(sep=TWO, data=axis(0, 0, 2), pipe=axis(0, 0, 4))),
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


def marked(**marks):
    """The layout of a weight with these marks."""
    model = paddle.nn.Linear(2, 2, bias_attr=False)
    for name, value in marks.items():
        setattr(model.weight, name, value)
    return [*read_layout(model).values()]


MP_MOE = {"mp_moe": True, "expert": False, "no_sync": False}
COLORED = {"color": {"color": "moe_expert"}, "no_sync": False}
COPIES = axis(0, 0, 2)


@pytest.mark.parametrize(
    ("marks", "topology", "message"),
    [
        (
            {"no_sync": True},
            Topology(sharding=TWO, expert=TWO),
            "sharding V1.*split_param",
        ),
        (
            {"no_sync": True},
            Topology(sharding=TWO, splits_parameters=True),
            "without expert groups",
        ),
        ({"no_sync": True}, Topology(model=TWO), "tensor-parallel axis"),
        *(
            (
                {"no_sync": True},
                Topology(data=COPIES, **{beside: TWO}),
                "weight.*fleet ignores no_sync",
            )
            for beside in ("model", "pipe", "sep")
        ),
        *(
            (
                {**marks, "is_distributed": True},
                Topology(model=TWO, data=data),
                "weight.*moe_group mp",
            )
            for marks in (MP_MOE, COLORED)
            for data in (Axis(), COPIES)
        ),
    ],
)
def test_layouts_without_a_right_norm_are_refused(marks, topology, message):
    for check in (check_layout, make_plan):
        with pytest.raises(ValueError, match=message):
            check(marked(**marks), topology)
    check_layout(marked(**marks), Topology(data=TWO))
    check_layout(marked(), topology)


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
