# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fleet's settings and a mesh's placements, as the clip reads them."""

import re
import types

import numpy as np
import paddle.distributed as dist
import pytest
from paddle.distributed import fleet
from paddle.distributed.fleet.base.topology import EPHybridCommunicateGroup

from paddle_adagc.parallel import topology
from paddle_adagc.parallel.layout import Spread, _read
from paddle_adagc.parallel.topology import Axis, Topology


class Groups:
    """Fleet's groups along these axes; there is one rank along the others."""

    def __init__(self, **axes):
        self.axes = axes

    def get_stage_id(self):
        return self.axes["pipe"].rank

    def __getattribute__(self, name):
        pattern = r"get_(\w+)_parallel_(?:world_)?(rank|size|group)"
        asked = re.fullmatch(pattern, name)
        if asked is None:
            return super().__getattribute__(name)
        place = self.axes.get(asked[1], Axis(1, 1))
        return lambda: getattr(place, asked[2])


class ExpertGroups(Groups, EPHybridCommunicateGroup):
    """Those of expert parallelism."""


STAGES = {"pipe": Axis(2, 3, "stages")}


@pytest.fixture
def settings(monkeypatch):
    """``sharding_configs`` of a fleet that has started."""
    sharding = types.SimpleNamespace(
        split_param=False, tensor_fusion=False, fuse_optimizer=True
    )
    strategy = types.SimpleNamespace(
        hybrid_configs={"sharding_configs": sharding}
    )
    groups = Groups(**STAGES, sep=Axis(1, 2), data=Axis(0, 4, "copies"))
    monkeypatch.setattr(fleet.fleet, "_hcg", groups, raising=False)
    monkeypatch.setattr(
        fleet.fleet, "_user_defined_strategy", strategy, raising=False
    )
    monkeypatch.setattr(topology.dist, "is_initialized", lambda: True)
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
    assert found.sep == Axis(1, 2)
    assert found.data == Axis(0, 4, "copies")
    assert found.model == found.sharding == Axis()  # one rank has no group


def test_a_wrapper_of_group_sharded_has_a_group_of_its_own(monkeypatch):
    monkeypatch.setattr(topology.dist, "get_group", lambda: "all")
    group = types.SimpleNamespace(rank=1, nranks=2)
    wrapper = types.SimpleNamespace(
        _offload=False, _group=group, _dp_group=None
    )
    found = topology.with_wrapper(None, wrapper)
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
        topology.with_wrapper(None, wrapper)


@pytest.mark.usefixtures("settings")
def test_experts_have_groups_of_their_own(monkeypatch):
    places = {
        "expert": Axis(1, 2, "expert"),
        "moe_sharding": Axis(1, 4, "moe_sharding"),
    }
    groups = ExpertGroups(**STAGES, **places)
    monkeypatch.setattr(fleet.fleet, "_hcg", groups, raising=False)
    found = topology.read_topology()
    assert found.expert == places["expert"]
    assert found.moe_sharding == places["moe_sharding"]
    assert found.has_expert_groups


@pytest.mark.parametrize(
    ("shape", "rank", "groups"),
    [
        ((2, 2), 3, ((0, (1, 3)), (1, (2, 3)))),
        ((1, 2), 1, ((1, (0, 1)),)),
        ((2, 2), 9, ()),
    ],
)
def test_a_rank_s_groups_on_a_mesh(shape, rank, groups):
    ranks = np.arange(np.prod(shape)).reshape(shape)
    placements = [dist.Shard(0), dist.Shard(1)]
    assert _read(ranks, placements, rank) == Spread(
        tuple(range(ranks.size)), groups
    )
    assert _read(ranks, [dist.Replicate()] * 2, rank).groups == ()
