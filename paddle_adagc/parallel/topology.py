# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fleet's process groups, read once fleet has made them."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel.sharding import group_sharded_stage3

try:
    from paddle.distributed.fleet.base.topology import EPHybridCommunicateGroup
except ImportError as error:
    text = f"paddle_adagc needs Paddle 3.1 to 3.3, not {paddle.__version__}"
    raise ImportError(text) from error

T = TypeVar("T")


def gather(value: T, group: Any) -> list[T]:
    """Return the values of a group's ranks, which all call this; None: one."""
    if group is None:
        return [value]
    values: list[T] = []
    dist.all_gather_object(values, value, group=group)
    return values


@dataclasses.dataclass(frozen=True)
class Axis:
    """This rank's place along one axis of the hybrid topology."""

    rank: int = 0
    size: int = 1
    group: Any = None  # process group along the axis; None: one rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """This rank's place on every axis; an axis that is not used has size 1."""

    data: Axis = Axis()
    sep: Axis = Axis()
    model: Axis = Axis()  # tensor-parallel group
    pipe: Axis = Axis()
    sharding: Axis = Axis()  # shares the optimizer states of dense tensors
    moe_sharding: Axis = Axis()  # shares those of the same experts
    expert: Axis = Axis()  # ranks that own different experts
    splits_parameters: bool = False
    """Sharding splits tensors (V2's ``split_param``, stage 3), rather than
    giving whole tensors to one owner (V1, stage 2)."""

    is_stage_3: bool = False  # the slices are those of stage 3
    fuses_parameters: bool = False
    """The optimizer works on buffers that join several tensors."""

    world: Any = None  # process group of all ranks; None: one, or no fleet

    @property
    def splits_model(self) -> bool:
        """Whether ranks have other parts of the model or of its states."""
        axes = (self.model, self.pipe, self.sharding, self.expert)
        return max(axis.size for axis in axes) > 1

    @property
    def has_expert_groups(self) -> bool:
        """Whether fleet made separate groups for experts."""
        return self.expert.size > 1 or self.moe_sharding.size > 1


def read_topology() -> Topology:
    """Return this process's place; without ``fleet.init`` it is alone."""
    hcg = getattr(fleet.fleet, "_hcg", None)
    if hcg is None or not dist.is_initialized():
        return Topology()
    strategy = fleet.fleet._user_defined_strategy
    sharding = strategy.hybrid_configs["sharding_configs"]
    names = ["data", "sep", "model", "sharding"]
    if isinstance(hcg, EPHybridCommunicateGroup):
        names += ["expert", "moe_sharding"]
    axes: dict[str, Any] = {name: _axis(hcg, name) for name in names}
    return Topology(
        **axes,
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
    )


def _axis(hcg: Any, name: str) -> Axis:
    size = getattr(hcg, f"get_{name}_parallel_world_size")()
    if size == 1:
        return Axis()
    rank = getattr(hcg, f"get_{name}_parallel_rank")()
    return Axis(rank, size, getattr(hcg, f"get_{name}_parallel_group")())


def with_wrapper(topology: Topology, wrapper: Any) -> Topology:
    """Return the topology of a model in ``group_sharded_parallel``'s wrapper.

    Refuses one with offload.
    """
    if wrapper._offload:
        raise ValueError(
            "group_sharded_parallel with offload=True gives the clip tensors "
            "in host memory, stage 2 in one buffer: leave offload out"
        )
    is_stage_3 = isinstance(wrapper, group_sharded_stage3.GroupShardedStage3)
    sharding, data = (
        group and Axis(group.rank, group.nranks, group)
        for group in (wrapper._group, wrapper._dp_group)
    )
    return dataclasses.replace(
        topology,
        sharding=sharding,
        data=data or Axis(),
        splits_parameters=is_stage_3,
        is_stage_3=is_stage_3,
        world=topology.world or dist.get_group(),
    )
