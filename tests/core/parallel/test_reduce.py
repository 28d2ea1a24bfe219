# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tensors a rank sums over whom: fleet's groups, meshes, refusals."""

import types
from unittest import mock

import paddle
import paddle.distributed as dist
import pytest
from core.parallel.simulated import axis
from paddle.distributed import fleet
from paddle.distributed.fleet.base.topology import HybridCommunicateGroup

from paddle_adagc.parallel.layout import TensorLayout, read_layout
from paddle_adagc.parallel.reduce import check_layout, make_reducer
from paddle_adagc.parallel.topology import (
    Axis,
    Topology,
    read_topology,
    with_wrapper,
)

DENSE = TensorLayout(key="dense")
TWO, COPIES = axis(0, 0, 1), axis(0, 0, 2)
SLICES = {"sharding": TWO, "splits_parameters": True}


def marked(**marks):
    """The layout of a weight with these marks."""
    model = paddle.nn.Linear(2, 2, bias_attr=False)
    for name, value in marks.items():
        setattr(model.weight, name, value)
    return [*read_layout(model).values()]


NO_SYNC = {"no_sync": True}
MP_MOE = {"mp_moe": True, "is_distributed": True}
COLORED = {"color": {"color": "moe_expert"}, "no_sync": False}


@pytest.mark.parametrize(
    ("marks", "topology", "message"),
    [
        (NO_SYNC, Topology(sharding=TWO, expert=TWO), "under sharding V1"),
        (NO_SYNC, Topology(**SLICES), "without expert groups.*split_param"),
        (NO_SYNC, Topology(model=TWO), "tensor-parallel axis"),
        *(
            (
                NO_SYNC,
                Topology(data=COPIES, **{beside: TWO}),
                "ignores no_sync and",
            )
            for beside in ("model", "pipe", "sep")
        ),
        *(
            (marks, Topology(model=TWO, data=data), "weight.*moe_group mp")
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
    topology = Topology(world=(0, 1, 2, 3), **{copies: COPIES}, **SLICES)
    with pytest.warns(UserWarning, match=r"paddle 3\.3\.1 leaves out"):
        make_reducer([DENSE], topology)


def test_muon_s_sharding_cuts_vectors(monkeypatch):
    """PaddleFleet's "V3"; real ranks of fleet are in test_layouts.py."""
    groups = mock.Mock(spec=HybridCommunicateGroup)
    for name in ("model", "sharding", "sep", "data", "pipe"):
        getattr(groups, f"get_{name}_parallel_world_size").return_value = 1
    off = types.SimpleNamespace(split_param=False, tensor_fusion=False)
    strategy = types.SimpleNamespace(
        hybrid_configs={"sharding_configs": off}, use_muon_sharding=True
    )
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    known = {"_hcg": groups, "_user_defined_strategy": strategy}
    with mock.patch.dict(fleet.fleet.__dict__, known):
        assert read_topology().splits_parameters


def test_offload_is_refused():
    wrapper = types.SimpleNamespace(_offload=True)
    with pytest.raises(ValueError, match="leave offload out"):
        with_wrapper(Topology(), wrapper)
