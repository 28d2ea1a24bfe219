# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Experts that lie over the ranks in a way that gives no right norm."""

import numpy as np
import paddle
import pytest
from core.parallel.simulated import axis
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.layout import read_layout
from paddle_adagc.parallel.reduce import check_layout
from paddle_adagc.parallel.topology import Topology


@pytest.mark.parametrize(
    ("mark", "value"),
    [("no_sync", True), ("expert", True), ("color", {"color": "moe_expert"})],
)
def test_experts_over_data_parallel_ranks_need_bind(monkeypatch, mark, value):
    monkeypatch.setattr(
        "paddle_adagc.clips.stateful.read_topology",
        lambda: Topology(data=axis(0, 0, 1), world=(0, 1)),
    )
    dense, expert = make_parameters([[1], [1]])
    setattr(expert, mark, value)
    clip = ClipGradByAdaGC()
    clip_arrays(clip, [dense], [np.ones(1)])
    gradient = paddle.full([1], 50.0)
    with pytest.raises(RuntimeError, match=r"clip\.bind\(model\)"):
        clip([(dense, gradient), (expert, paddle.ones([1]))])
    assert gradient.item() == 50.0


@pytest.mark.parametrize("is_bound", [False, True])
def test_experts_on_ranks_without_fleet_are_refused(monkeypatch, is_bound):
    monkeypatch.setattr(paddle.distributed, "get_world_size", lambda: 2)
    model = paddle.nn.Linear(1, 1)
    model.weight.no_sync = True
    clip = ClipGradByAdaGC()
    if is_bound:
        clip.bind(model)
    message = r"fleet\.init" if is_bound else r"clip\.bind"
    with pytest.raises(RuntimeError, match=message):
        clip_arrays(clip, [model.weight], [np.ones([1, 1])])


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
    topology = Topology(model=axis(0, 0, 1), data=data)
    with pytest.raises(ValueError, match=r"weight.*moe_group mp"):
        check_layout(layout, topology)
    model.weight.is_distributed = False
    check_layout([*read_layout(model).values()], Topology(data=data))


@pytest.mark.parametrize("beside", ["model", "pipe", "sep"])
def test_experts_that_fleet_averages_are_refused(beside):
    model = paddle.nn.Linear(2, 2, bias_attr=False)
    model.weight.no_sync = True
    layout = list(read_layout(model).values())
    pure = Topology(data=axis(0, 0, 1), world=(0, 1))
    check_layout(layout, pure)
    topology = Topology(
        data=axis(0, 0, 2), world=(0, 1, 2, 3), **{beside: axis(0, 0, 1)}
    )
    with pytest.raises(ValueError, match=r"weight.*fleet ignores no_sync"):
        check_layout(layout, topology)
    check_layout([*read_layout(paddle.nn.Linear(2, 2)).values()], topology)
