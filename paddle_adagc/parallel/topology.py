# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fleet's process groups, read once fleet has made them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.base.topology import EPHybridCommunicateGroup
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_stage3,
)


def is_called_by(function: Callable[..., Any]) -> bool:
    """Whether a Python function is among the callers."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False


@dataclasses.dataclass(frozen=True)
class Axis:
    """This rank's place along one axis of the hybrid topology."""

    rank: int = 0
    size: int = 1
    group: Any = None
    """Process group along the axis; None where the axis has one rank."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """This rank's place on every axis; an axis that is not used has size 1."""

    data: Axis = Axis()
    sep: Axis = Axis()
    model: Axis = Axis()  # tensor-parallel group
    pipe: Axis = Axis()
    sharding: Axis = Axis()
    """Ranks that share the optimizer states of the dense tensors."""

    moe_sharding: Axis = Axis()
    """Ranks that share the optimizer states of the same experts."""

    expert: Axis = Axis()  # ranks that own different experts
    splits_parameters: bool = False
    """Sharding splits tensors (V2's ``split_param``, stage 3), rather than
    giving whole tensors to one owner (V1, stage 2)."""

    is_stage_3: bool = False  # the slices are those of stage 3
    fuses_parameters: bool = False
    """The optimizer works on buffers that join several tensors."""

    world: Any = None  # process group of all ranks; None for one process

    @property
    def splits_model(self) -> bool:
        """Whether no rank holds the whole model and its optimizer states."""
        axes = (self.model, self.pipe, self.sharding, self.expert)
        return max(axis.size for axis in axes) > 1

    @property
    def has_expert_groups(self) -> bool:
        """Whether fleet made groups of their own for experts."""
        return self.expert.size > 1 or self.moe_sharding.size > 1


def read_topology() -> Topology | None:
    """Return the topology of this process; None without ``fleet.init``."""
    hcg = getattr(fleet.fleet, "_hcg", None)
    if hcg is None or not dist.is_initialized():
        return None
    strategy = fleet.fleet._user_defined_strategy
    sharding = strategy.hybrid_configs["sharding_configs"]
    experts: dict[str, Any] = {}
    if isinstance(hcg, EPHybridCommunicateGroup):
        experts = {
            "expert": _axis(hcg, "expert_parallel"),
            "moe_sharding": _axis(hcg, "moe_sharding_parallel"),
        }
    return Topology(
        data=_axis(hcg, "data_parallel"),
        sep=_axis(hcg, "sep_parallel"),
        model=_axis(hcg, "model_parallel"),
        sharding=_axis(hcg, "sharding_parallel"),
        pipe=Axis(
            hcg.get_stage_id(),
            hcg.get_pipe_parallel_world_size(),
            hcg.get_pipe_parallel_group(),
        ),
        # Muon's sharding keeps matrices whole and cuts vectors: the sums that
        # slices need are right for both.
        splits_parameters=bool(sharding.split_param)
        or bool(getattr(strategy, "use_muon_sharding", False)),
        fuses_parameters=bool(
            sharding.tensor_fusion and sharding.fuse_optimizer
        ),
        world=dist.get_group() if dist.get_world_size() > 1 else None,
        **experts,
    )


def with_wrapper(topology: Topology | None, wrapper: Any) -> Topology:
    """Return the topology of a model in ``group_sharded_parallel``'s wrapper.

    Refuses one with offload.
    """
    if wrapper._offload:
        raise ValueError(
            "group_sharded_parallel with offload=True gives the clip tensors "
            "in host memory, stage 2 in one buffer: leave offload out"
        )
    topology = topology or Topology(world=dist.get_group())
    is_stage_3 = isinstance(wrapper, group_sharded_stage3.GroupShardedStage3)
    data = wrapper._dp_group
    return dataclasses.replace(
        topology,
        sharding=_axis_of(wrapper._group),
        data=topology.data if data is None else _axis_of(data),
        splits_parameters=is_stage_3,
        is_stage_3=is_stage_3,
    )


def _axis_of(group: Any) -> Axis:
    return Axis(group.rank, group.nranks, group)


def _axis(hcg: Any, name: str) -> Axis:
    size = getattr(hcg, f"get_{name}_world_size")()
    if size == 1:
        return Axis()
    rank = getattr(hcg, f"get_{name}_rank")()
    return Axis(rank, size, getattr(hcg, f"get_{name}_group")())
