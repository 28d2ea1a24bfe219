# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sums over ranks that a clip needs in every step.

A tensor's squared norm is summed over exactly the ranks that hold different
parts of it:

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
``segment_size`` values are whole on every rank, and summed nowhere. Started by
``group_sharded_parallel``, both are known from the wrapper that it returns.

Never over data-parallel, sep or pipeline ranks: their gradients are equal, or
of other tensors. One all-reduce per group and step carries one float32 for
every tensor of the group, in an order that all of its ranks share, whether or
not a rank has a gradient for it. The warm-up's global norm adds 3 numbers over
all ranks.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor

from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.topology import Axis, Topology

T = TypeVar("T")

_ALONE = Axis()


@dataclasses.dataclass(frozen=True)
class Reduction:
    """One sum over a group, of some entries of the vector of norms."""

    name: str
    """``"sharding"``, ``"moe_sharding"``, ``"model"`` or ``"expert"``."""

    group: Any
    slots: tuple[int, ...]
    """Entries of the vector, the same on all ranks of the group."""


@dataclasses.dataclass(frozen=True)
class ReductionPlan:
    """The sums of a rank in every step, and the tensors that it counts."""

    reductions: tuple[Reduction, ...] = ()  # in this order
    counts: tuple[bool, ...] = ()
    """Per tensor: this rank counts it in the global norm, and no other does."""

    is_first: tuple[bool, ...] = ()
    """Per tensor: this rank is the first of those that know the tensor."""

    model: Axis = _ALONE  # tensor-parallel ranks
    world: Any = None
    """Group of the global norm; None where every rank holds everything."""


def check_layout(layout: Sequence[TensorLayout], topology: Topology) -> None:
    """Refuse, by ValueError, layouts in which a norm could not be right.

    Warns of data or sep parallelism with sharding V2, in which paddle 3.3.1
    does not sum the gradients of the first step over these ranks.
    """
    copies = max(topology.data.size, topology.sep.size)
    if (
        topology.splits_parameters
        and not topology.is_stage_3
        and min(topology.sharding.size, copies) > 1
    ):
        warnings.warn(
            "data or sep parallelism with sharding V2: paddle 3.3.1 leaves out "
            "the first step's sum over the data-parallel and sep ranks, and "
            "their weights drift apart; use a larger sharding degree instead",
            stacklevel=3,
        )
    on_tp_axis = [t.key for t in layout if t.is_expert_on_tp_axis]
    if on_tp_axis and topology.model.size > 1:
        raise ValueError(
            f"{len(on_tp_axis)} expert tensors ({on_tp_axis[0]}, ...) are "
            "marked as those of tensor-parallel ranks (moe_group mp): use "
            "fleet's expert parallelism (ep_degree)"
        )
    experts = [tensor.key for tensor in layout if tensor.is_expert]
    if not experts:
        return
    which = f"{len(experts)} expert tensors ({experts[0]}, ...)"
    if topology.has_expert_groups:
        if topology.sharding.size > 1 and not topology.splits_parameters:
            raise ValueError(
                f"{which} under sharding V1, which ignores the experts' groups "
                "and gives some of them to ranks that do not hold them: set "
                "sharding_configs.split_param (V2)"
            )
        return
    if topology.sharding.size > 1:
        raise ValueError(
            f"{which} on the sharding axis without expert groups: use fleet's "
            "expert parallelism (ep_degree) with sharding V2"
        )
    if topology.model.size > 1 and topology.data.size == 1:
        raise ValueError(
            f"{which} on the tensor-parallel axis: nothing tells whether its "
            "ranks hold different experts or parts of the same; use fleet's "
            "expert parallelism (ep_degree)"
        )
    split = max(topology.model.size, topology.pipe.size, topology.sep.size)
    if split > 1 and topology.data.size * topology.sep.size > 1:
        raise ValueError(
            f"{which} on the data-parallel axis beside tensor, pipeline or sep "
            "parallelism: there fleet ignores no_sync and averages the "
            "gradients of different experts; use fleet's expert parallelism "
            "(ep_degree), or data parallelism alone"
        )


def make_plan(
    layout: Sequence[TensorLayout], topology: Topology
) -> ReductionPlan:
    """Which sums the table above asks for; see :func:`check_layout`.

    ``layout`` has this rank's tensors in the order of its vectors.
    """
    check_layout(layout, topology)
    has_groups = topology.has_expert_groups
    tensors = [*enumerate(layout)]
    dense = [(i, t) for i, t in tensors if not (t.is_expert and has_groups)]
    own = [(i, t) for i, t in tensors if t.is_expert and has_groups]
    wanted: list[tuple[str, Axis, list[int]]] = []
    if topology.splits_parameters:
        sliced = [i for i, t in dense if not t.is_whole]
        wanted.append(("sharding", topology.sharding, sliced))
        experts = [i for i, _ in own]
        wanted.append(("moe_sharding", topology.moe_sharding, experts))
    split = [i for i, t in dense if t.is_tp_split]
    wanted.append(("model", topology.model, split))
    cut = [i for i, t in own if t.is_split_over_experts]
    wanted.append(("expert", topology.expert, cut))
    holds_everything = not (
        topology.splits_model or any(tensor.is_expert for tensor in layout)
    )
    # Owners under V1 all count, as only the owner's norm is not 0.
    sliced_topology = dataclasses.replace(topology, splits_parameters=True)
    return ReductionPlan(
        tuple(
            Reduction(name, axis.group, tuple(slots))
            for name, axis, slots in wanted
            if axis.size > 1 and slots
        ),
        tuple(_counts(tensor, topology) for tensor in layout),
        tuple(_counts(tensor, sliced_topology) for tensor in layout),
        topology.model,
        None if holds_everything else topology.world,
    )


def _counts(tensor: TensorLayout, topology: Topology) -> bool:
    """Whether this rank is the first that knows the tensor's norm.

    After the sums, all ranks that hold copies or parts of a tensor know it.
    """
    if tensor.is_tied_copy:
        return False
    if tensor.is_expert and topology.has_expert_groups:
        is_cut = tensor.is_split_over_experts
        is_first = not is_cut or topology.expert.rank == 0
        return is_first and topology.moe_sharding.rank == 0
    first = [topology.sep, topology.model]
    if not tensor.is_expert:  # on the data-parallel axis experts differ
        first.append(topology.data)
    if topology.splits_parameters:
        first.append(topology.sharding)
    return all(axis.rank == 0 for axis in first)


class Reducer:
    """Carries out a plan on the vector of squared norms.

    ``plan`` is None where this process holds everything. ``everyone`` is the
    group of all ranks, those that hold everything included, if it is known.
    """

    def __init__(
        self, plan: ReductionPlan | None, everyone: Any = None
    ) -> None:
        self._plan = plan or ReductionPlan()
        self._world = self._plan.world
        self._everyone = everyone or self._world
        self._reductions = [
            (paddle.to_tensor(np.array(r.slots, np.int64)), r.group)
            for r in self._plan.reductions
        ]
        self._counts: Tensor | None = None  # bool [num_tensors]
        if self._world is not None:
            self._counts = paddle.to_tensor(np.array(self._plan.counts))

    @property
    def communicates(self) -> bool:
        """Whether other ranks may wait for this one in a step."""
        return bool(self._reductions) or self._world is not None

    @property
    def num_tp_ranks(self) -> int:
        """Number of ranks that split the tensor-parallel tensors."""
        return self._plan.model.size

    def sum_over_tp(self, parts: Tensor) -> Tensor:
        """Sum over the tensor-parallel group, in place.

        Entry i of ``parts``, float32 ``[n]``, is about one unit on all ranks.
        """
        if self.num_tp_ranks > 1:
            dist.all_reduce(parts, group=self._plan.model.group)
        return parts

    def local_norms(self, squared_norm: Tensor) -> Tensor:
        """Sum each tensor's squared norm over the ranks that hold it.

        ``squared_norm``, float32 ``[num_tensors]``, is of this rank's parts,
        and 0 for tensors that it has no gradient of. Returns that of the whole
        tensors.
        """
        for index, group in self._reductions:
            part = paddle.gather(squared_norm, index)
            part = self._all_reduce(part, group)
            squared_norm = paddle.scatter(squared_norm, index, part)
        return squared_norm

    def _all_reduce(self, part: Tensor, group: Any) -> Tensor:
        dist.all_reduce(part, group=group)
        return part

    def counted(self, squared_norm: Tensor) -> Tensor:
        """Return the entries that this rank counts, 0 elsewhere."""
        if self._counts is None:
            return squared_norm
        zero = paddle.zeros_like(squared_norm)
        return paddle.where(self._counts, squared_norm, zero)

    def gather(self, value: T) -> list[T]:
        """Give every rank the values of all ranks; waits for them.

        Where every rank holds everything the answer is its own alone.
        """
        return _gather(value, self._world)

    def global_sum(self, total: Tensor) -> Tensor:
        """Sum, over all ranks, a total of the tensors that each counts.

        float64 ``[n]``, in place.
        """
        if self._world is not None:
            dist.all_reduce(total, group=self._world)
        return total

    def sum_over_model(self, values: Sequence[float]) -> Tensor:
        """Sum ``[num_tensors]`` known numbers, each tensor counted once.

        Returns float64 ``[1]``, after one all-reduce.
        """
        if self._world is not None:
            values = [
                value if first else 0.0
                for value, first in zip(
                    values, self._plan.is_first, strict=True
                )
            ]
        total = paddle.to_tensor([float(sum(values))], "float64")
        return self.global_sum(total)

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set on any rank; waits for all of them."""
        return _any_rank(flag, self._world)

    def tell_everyone(self, is_news: bool, value: T) -> list[T]:
        """Give all ranks' values to all, if they are news on any of them.

        Data-parallel ranks are included. One all-reduce of one number; if there
        are news, one gather.
        """
        if not _any_rank(is_news, self._everyone):
            return []
        return _gather(value, self._everyone)


def _gather(value: T, group: Any) -> list[T]:
    if group is None:
        return [value]
    values: list[T] = []
    dist.all_gather_object(values, value, group=group)
    return values


def _any_rank(flag: bool, group: Any) -> bool:
    if group is None:
        return flag
    value = paddle.to_tensor([int(flag)], "int32")
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    return bool(value.item())
