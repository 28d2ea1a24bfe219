# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sums over ranks that a clip needs in every step.

A tensor's squared norm is summed over exactly the ranks that hold different
parts of it. Under fleet:

==================  ============  =================  =========================
tensor              no sharding   owners (V1)        slices (V2)
==================  ============  =================  =========================
dense               -             -                  sharding group
tensor-parallel     mp group      mp group           sharding group, mp group
expert              -             refused            moe_sharding group
part of all experts expert group  refused            moe_sharding, expert
tied over stages    -             -                  sharding group
==================  ============  =================  =========================

Stage 2 counts as owners, stage 3 as slices: its tensors of up to
``segment_size`` values are whole on every rank, and summed nowhere. On a mesh
of auto-parallel: over the dimensions on which the gradient is ``Shard``.

Never over data-parallel, sep or pipeline ranks: their gradients are equal, or
of other tensors. One all-reduce per group and step carries one float32 for
every tensor of the group, in an order that all of its ranks share, whether or
not a rank has a gradient for it. The warm-up's global norm adds 3 numbers over
all ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.distributed.auto_parallel.api import dtensor_from_local

from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.topology import Axis, Topology, gather

T = TypeVar("T")


def check_layout(layout: Sequence[TensorLayout], topology: Topology) -> None:
    """Refuse, by ValueError, layouts in which a norm could not be right."""
    experts = [tensor.key for tensor in layout if tensor.is_expert]
    on_tp_axis = [t.key for t in layout if t.is_expert_on_tp_axis]
    without = [t.key for t in layout if t.is_expert and not t.has_group]
    has_tp, is_sharded = topology.model.size > 1, topology.sharding.size > 1
    split = max(topology.model.size, topology.pipe.size, topology.sep.size)
    why = ""
    if on_tp_axis and has_tp:
        experts = on_tp_axis
        why = "marked as those of tensor-parallel ranks (moe_group mp)"
    elif topology.has_expert_groups:
        if is_sharded and not topology.splits_parameters:
            why = (
                "under sharding V1, which ignores the experts' groups and "
                "gives some of them to ranks that do not hold them"
            )
        elif is_sharded and without:
            experts = without
            why = "without a group in color: sharding V2 would average them"
    elif is_sharded:
        why = "on the sharding axis without expert groups"
    elif has_tp and topology.data.size == 1:
        why = (
            "on the tensor-parallel axis: nothing tells whether its ranks hold "
            "different experts or parts of the same"
        )
    elif split > 1 and topology.data.size * topology.sep.size > 1:
        why = (
            "on the data-parallel axis beside tensor, pipeline or sep "
            "parallelism: there step() of fleet's optimizer ignores no_sync "
            "and averages the gradients of different experts"
        )
    if why and experts:
        raise ValueError(
            f"{len(experts)} expert tensors ({experts[0]}, ...) {why}; use "
            "fleet's expert parallelism (ep_degree) with sharding V2 "
            "(sharding_configs.split_param), or data parallelism alone"
        )


class Reducer:
    """The sums of a rank in every step; by default it holds everything.

    Args:
        reductions: Groups, or meshes of one dimension, and the indexes that are
            summed over each; the same on all of its ranks, in this order.
        counts: Whether this rank, and no other, counts a tensor's norm.
        world: Group of the global norm; None: each rank holds everything.
        everyone: Group of all ranks, even if each holds the whole model; None:
            there is no such group.
    """

    def __init__(
        self,
        reductions: Sequence[tuple[Any, Sequence[int]]] = (),
        counts: Sequence[bool] = (),
        world: Any = None,
        everyone: Any = None,
    ) -> None:
        self.reductions = [
            (group, paddle.to_tensor(np.array(indexes, np.int64)))
            for group, indexes in reductions
        ]
        self.counts = counts
        self.communicates = bool(reductions) or world is not None
        """Other ranks may wait for this one in a step."""
        self._world, self._everyone = world, everyone or world
        self._counts: Tensor | None = None  # bool [num_tensors]
        if world is not None:
            self._counts = paddle.to_tensor(np.array(counts))

    def whole_norms(self, squared_norm: Tensor) -> Tensor:
        """Sum each tensor's squared norm over the ranks that hold its parts.

        Ranks with copies are left out. ``squared_norm``, float32
        ``[num_tensors]``, is of this rank's parts, 0 without a gradient; the
        result is of the whole tensors.
        """
        for group, index in self.reductions:
            part = _all_reduce(paddle.gather(squared_norm, index), group)
            squared_norm = paddle.scatter(squared_norm, index, part)
        return squared_norm

    def counted(self, squared_norm: Tensor) -> Tensor:
        """Return the entries that this rank counts, 0 elsewhere."""
        if self._counts is None:
            return squared_norm
        zero = paddle.zeros_like(squared_norm)
        return paddle.where(self._counts, squared_norm, zero)

    def global_sum(self, total: Tensor) -> Tensor:
        """Sum over all ranks, in place, float64 ``[n]`` of what each counts."""
        if self._world is not None:
            dist.all_reduce(total, group=self._world)
        return total

    def gather(self, value: T) -> list[T]:
        """Values of all ranks, or its own alone if each holds everything."""
        return gather(value, self._world)

    def gather_if_any(self, flag: bool, value: T) -> list[T]:
        """Values of all ranks, data-parallel ones too, if a flag is set on any.

        One all-reduce of one number; if it is set, one gather.
        """
        if self._everyone is not None:
            flags = paddle.to_tensor([int(flag)], "int32")
            dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._everyone)
            flag = bool(flags.item())
        return gather(value, self._everyone) if flag else []


_SUMMED = ("sharding", "moe_sharding", "model", "expert")
"""Axes that split tensors, in the order in which every rank sums over them."""


def holders(
    tensor: TensorLayout, topology: Topology
) -> tuple[list[str], list[str]]:
    """Name the axes whose ranks hold other parts of a tensor, and copies of it.

    The table above. Ranks on another axis hold other tensors, or under V1 a
    norm of 0 in the place of the owner's.
    """
    parts: list[str] = []
    copies: list[str] = []
    is_cut = topology.splits_parameters and not tensor.is_whole
    if tensor.is_expert and topology.has_expert_groups:
        (parts if is_cut else copies).append("moe_sharding")
        if tensor.is_split_over_experts:
            parts.append("expert")
        return parts, copies
    copies.append("sep")
    if not (tensor.is_expert and tensor.is_unsynced):  # else it differs there
        copies.append("data")
    (parts if tensor.is_tp_split else copies).append("model")
    if topology.splits_parameters:
        (parts if is_cut else copies).append("sharding")
    return parts, copies


def make_reducer(layout: Sequence[TensorLayout], topology: Topology) -> Reducer:
    """Make the sums for this rank's tensors in order, by :func:`holders`.

    The first of the ranks that hold a tensor counts it. Warns of data or sep
    parallelism with sharding V2, in which paddle 3.3.1 does not sum the
    gradients of the first step over these ranks.
    """
    check_layout(layout, topology)
    copies = max(topology.data.size, topology.sep.size)
    if (
        topology.splits_parameters
        and not topology.is_stage_3
        and min(topology.sharding.size, copies) > 1
    ):
        warnings.warn(
            "data or sep parallelism with sharding V2: step() of fleet's "
            "optimizer in paddle 3.3.1 leaves out the first step's sum over "
            "the data-parallel and sep ranks, and their weights drift apart. "
            "Use a larger sharding degree instead (Trainers sum by themselves, "
            "but for float16 with a GradScaler)",
            stacklevel=3,
        )
    held = [holders(tensor, topology) for tensor in layout]
    reductions = []
    for name in _SUMMED:
        axis: Axis = getattr(topology, name)
        indexes = [i for i, (parts, _) in enumerate(held) if name in parts]
        if axis.size > 1 and indexes:
            reductions.append((axis.group, indexes))
    counts = [
        not tensor.is_tied_copy
        and all(getattr(topology, name).rank == 0 for name in parts + copies)
        for tensor, (parts, copies) in zip(layout, held, strict=True)
    ]
    has_others = topology.splits_model or any(t.is_expert for t in layout)
    world = topology.world
    return Reducer(reductions, counts, world if has_others else None, world)


def _all_reduce(part: Tensor, group: Any) -> Tensor:
    """Sum over a group or a mesh, for which no other ranks make a group."""
    if isinstance(group, dist.ProcessMesh):
        summands = dtensor_from_local(part, group, [dist.Partial()])
        return dist.reshard(summands, group, [dist.Replicate()])._local_value()
    dist.all_reduce(part, group=group)
    return part
