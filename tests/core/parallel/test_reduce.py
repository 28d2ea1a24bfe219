# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tensors a rank sums over whom: fleet's groups, meshes, refusals."""

import types
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel.simulated import axis
from paddle.distributed import fleet
from paddle.distributed.fleet.base.topology import (
    EPHybridCommunicateGroup,
    HybridCommunicateGroup,
)

from paddle_adagc.parallel import topology
from paddle_adagc.parallel.layout import TensorLayout, read_layout, spread_of
from paddle_adagc.parallel.reduce import check_layout, make_reducer
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
    for check in (check_layout, make_reducer):
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


PLACES = {
    "sep": Axis(1, 2),
    "data": Axis(0, 4, "copies"),
    "expert": Axis(1, 2, "expert"),
    "moe_sharding": Axis(1, 4, "moe_sharding"),
}


def fleets(kind):
    """Fleet's groups of a kind: those places, alone on the other axes."""
    answers = {
        "get_stage_id": 2,
        "get_pipe_parallel_world_size": 3,
        "get_pipe_parallel_group": "stages",
    }
    for name in ("model", "sharding", *PLACES):
        place = PLACES.get(name, Axis(1, 1))
        answers[f"get_{name}_parallel_rank"] = place.rank
        answers[f"get_{name}_parallel_world_size"] = place.size
        answers[f"get_{name}_parallel_group"] = place.group
    known = {
        f"{name}.return_value": answer
        for name, answer in answers.items()
        if hasattr(kind, name)
    }
    return mock.Mock(spec=kind, **known)


@pytest.fixture
def settings(monkeypatch):
    """``sharding_configs`` of a fleet that has started."""
    sharding = types.SimpleNamespace(
        split_param=False, tensor_fusion=False, fuse_optimizer=True
    )
    strategy = types.SimpleNamespace(
        hybrid_configs={"sharding_configs": sharding}
    )
    groups = fleets(HybridCommunicateGroup)
    monkeypatch.setattr(fleet.fleet, "_hcg", groups, raising=False)
    monkeypatch.setattr(
        fleet.fleet, "_user_defined_strategy", strategy, raising=False
    )
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    return sharding


@pytest.mark.parametrize(
    ("changes", "fuses", "splits"),
    [
        ({}, False, False),
        ({"tensor_fusion": True}, True, False),
        ({"tensor_fusion": True, "fuse_optimizer": False}, False, False),
        ({"split_param": True}, False, True),
        ({"use_muon_sharding": True}, False, True),  # PaddleFleet's "V3"
    ],
)
def test_settings_of_sharding(settings, changes, fuses, splits):
    strategy = fleet.fleet._user_defined_strategy
    for name, value in changes.items():
        owner = settings if hasattr(settings, name) else strategy
        setattr(owner, name, value)
    found = topology.read_topology()
    assert (found.fuses_parameters, found.splits_parameters) == (fuses, splits)
    assert found.world is None
    assert found.pipe == Axis(2, 3, "stages")
    assert (found.sep, found.data) == (PLACES["sep"], PLACES["data"])
    assert found.model == found.sharding == Axis()  # one rank has no group


def test_a_wrapper_of_group_sharded_has_a_group_of_its_own(monkeypatch):
    monkeypatch.setattr(dist, "get_group", lambda: "all")
    group = types.SimpleNamespace(rank=1, nranks=2)
    wrapper = types.SimpleNamespace(
        _offload=False, _group=group, _dp_group=None
    )
    found = topology.with_wrapper(Topology(), wrapper)
    assert found == Topology(world="all", sharding=Axis(1, 2, group))
    fleets = Topology(model=Axis(0, 2), data=Axis(0, 4), world="fleet's")
    found = topology.with_wrapper(fleets, wrapper)
    assert (found.model, found.data) == (fleets.model, fleets.data)
    assert (found.world, found.sharding.size) == ("fleet's", 2)
    wrapper._dp_group = types.SimpleNamespace(rank=0, nranks=3)
    assert topology.with_wrapper(fleets, wrapper).data.size == 3


def test_offload_is_refused():
    wrapper = types.SimpleNamespace(_offload=True)
    with pytest.raises(ValueError, match="leave offload out"):
        topology.with_wrapper(Topology(), wrapper)


@pytest.mark.usefixtures("settings")
def test_experts_have_groups_of_their_own(monkeypatch):
    groups = fleets(EPHybridCommunicateGroup)
    monkeypatch.setattr(fleet.fleet, "_hcg", groups, raising=False)
    found = topology.read_topology()
    for name in ("expert", "moe_sharding"):
        assert getattr(found, name) == PLACES[name]
    assert found.has_expert_groups


@pytest.mark.parametrize(
    ("shape", "rank", "groups"),
    [
        ((2, 2), 3, ((0, (1, 3)), (1, (2, 3)))),
        ((1, 2), 1, ((1, (0, 1)),)),
        ((2, 2), 9, ()),
    ],
)
def test_a_rank_s_groups_on_a_mesh(monkeypatch, shape, rank, groups):
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    ranks = [*range(np.prod(shape))]
    mesh = types.SimpleNamespace(process_ids=ranks, shape=shape)
    for placements, expected in (
        ([dist.Shard(0), dist.Shard(1)], groups),
        ([dist.Replicate()] * 2, ()),
    ):
        tensor = types.SimpleNamespace(
            is_dist=lambda: True, process_mesh=mesh, placements=placements
        )
        spread = spread_of(tensor)
        assert (spread.ranks, spread.groups) == (tuple(ranks), expected)
