# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sums that a clip needs over the meshes of auto-parallel.

A tensor's squared norm is summed over the mesh dimensions on which its gradient
is ``Shard``, never over those on which it is ``Replicate``; ``Partial`` is gone
by then. One all-reduce per group of ranks carries one float32 for every tensor
that the group splits. The norm over all tensors needs a sum over all ranks
where some tensors lie on other ranks than the rest, as on pipeline stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import paddle.distributed as dist
from paddle import Tensor
from paddle.distributed.auto_parallel.api import (
    _ShardOptimizer,
    dtensor_from_local,
)
from paddle.distributed.auto_parallel.process_mesh import (
    get_unique_process_mesh_map,
)
from paddle.distributed.communication.group import Group

from paddle_adagc.parallel.layout import Ranks, Spread, TensorLayout, spread_of
from paddle_adagc.parallel.reduce import Reducer, Reduction, ReductionPlan
from paddle_adagc.parallel.topology import Axis, is_called_by


class Meshes:
    """What a clip knows of the tensors that lie on meshes.

    ``layout`` has a model's tensors, in the order of their slots. Their
    gradients may lie in other ways, and are asked in every step.
    """

    def __init__(self, layout: Iterable[TensorLayout] = ()) -> None:
        self._bound = {
            slot: tensor.spread
            for slot, tensor in enumerate(layout)
            if tensor.spread is not None
        }
        self._spreads = self._bound
        self._reducers: dict[int, MeshReducer] = {}  # by number of tensors

    def __bool__(self) -> bool:
        """Whether there is such a tensor."""
        return bool(self._spreads)

    def local_parts(
        self, slots: Iterable[int], pairs: Iterable[tuple[Tensor, Tensor]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return parameters and this rank's parts of their gradients.

        Summands (``Partial``) are added up before, in place. Pairs that lie on
        other ranks alone are left out.
        """
        found = dict(self._spreads)
        here: list[tuple[Tensor, Tensor]] = []
        for slot, (parameter, gradient) in zip(slots, pairs, strict=True):
            if gradient.is_dist():
                _add_up_(gradient)
            spread = spread_of(gradient)
            if spread is not None:
                found[slot] = spread
            if spread is None or dist.get_rank() in spread.ranks:
                here.append((parameter, local_value(gradient)))
        self._update(found)
        return here

    def slices(
        self, group: Group, pairs: Iterable[tuple[Tensor, Tensor]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return parameters and this rank's slices, under tensor fusion.

        A slice does not say of what tensor it is a part: each is summed over
        all ranks of the ``group`` that share the buffers, and over the
        dimensions on which its parameter is ``Shard``.
        """
        ranks = tuple(group.ranks)
        self._update(
            {
                slot: Spread(spread.ranks, ((-1, ranks), *spread.groups))
                for slot, spread in self._bound.items()
            }
        )
        return [(parameter, local_value(g)) for parameter, g in pairs]

    def _update(self, spreads: dict[int, Spread]) -> None:
        if spreads != self._spreads:
            self._spreads = spreads
            self._reducers = {}

    def split_slots(self) -> list[int]:
        """Slots of the gradients of which this rank has a part alone."""
        return [slot for slot, s in self._spreads.items() if s.groups]

    def reducer(self, num_tensors: int) -> MeshReducer:
        """Return the sums of a step, for vectors of ``num_tensors`` entries."""
        if num_tensors not in self._reducers:
            spreads = [self._spreads.get(slot) for slot in range(num_tensors)]
            self._reducers[num_tensors] = MeshReducer(make_mesh_plan(spreads))
        return self._reducers[num_tensors]


class MeshReducer(Reducer):
    """A :class:`Reducer` whose groups are lists of ranks.

    Paddle makes a process group only if all ranks take part; a reshard from
    ``Partial`` to ``Replicate`` needs none but the ranks of its mesh.
    """

    def _all_reduce(self, part: Tensor, group: Ranks) -> Tensor:
        mesh = _line(group)
        summands = dtensor_from_local(part, mesh, [dist.Partial()])
        return dist.reshard(summands, mesh, [dist.Replicate()])._local_value()


def make_mesh_plan(spreads: Sequence[Spread | None]) -> ReductionPlan:
    """Which sums the rule above asks for.

    ``spreads`` are those of every tensor's gradient, in the order of the clip's
    vectors; None stands for a dense tensor, which every rank holds.
    """
    slots: dict[tuple[int, Ranks], list[int]] = {}
    for slot, spread in enumerate(spreads):
        for group in spread.groups if spread else ():
            slots.setdefault(group, []).append(slot)
    # All ranks sum over dimension 0 first, then 1: else a rank would add what
    # another has summed already. One order also means no waiting in a circle.
    reductions = tuple(
        Reduction(f"dimension {axis}", ranks, tuple(slots[axis, ranks]))
        for axis, ranks in sorted(slots)
    )
    is_first = tuple(
        dist.get_rank() == (min(spread.ranks) if spread else 0)
        for spread in spreads
    )
    num_ranks = dist.get_world_size()
    holds_everything = all(
        spread is None or len(spread.ranks) == num_ranks for spread in spreads
    )
    world = None
    if not holds_everything:
        if not dist.is_initialized():
            raise RuntimeError(
                "tensors lie on different meshes, and their norms have to be "
                "added up over all ranks: call paddle.distributed."
                "init_parallel_env() first"
            )
        world = dist.get_group()
    return ReductionPlan(reductions, is_first, is_first, Axis(), world)


def any_is_distributed(pairs: Iterable[tuple[Tensor, Tensor]]) -> bool:
    """Whether a gradient is a ``DistTensor``.

    Asks no tensor where the process has made no mesh.
    """
    return bool(get_unique_process_mesh_map()) and any(
        gradient.is_dist() for _, gradient in pairs
    )


def local_value(tensor: Tensor) -> Tensor:
    """Return this rank's part, in the same memory; a dense tensor itself."""
    return tensor._local_value() if tensor.is_dist() else tensor


def fuses_tensors() -> bool:
    """Whether ``_ShardOptimizer`` announces slices of its own buffers.

    FSDP announces in the same way buffers that join tensors.
    """
    return is_called_by(_ShardOptimizer._tensor_fusion)


def makes_states_only() -> bool:
    """Whether this step is the fake one of ``_ShardOptimizer.state_dict``.

    Before the first step Paddle makes the optimizer's states by a step with
    gradients of zero. It trains nothing, and a clip must not count it.
    """
    return is_called_by(_ShardOptimizer.state_dict)


def _add_up_(gradient: Tensor) -> None:
    """Replace ``Partial`` placements by ``Replicate``.

    ``paddle.nn.ClipGradByGlobalNorm`` and ``AdamW`` do the same, each for
    itself; after this the optimizer finds nothing left to add.
    """
    placements = gradient.placements
    if not any(placement.is_partial() for placement in placements):
        return
    whole = dist.reshard(
        gradient,
        gradient.process_mesh,
        [dist.Replicate() if p.is_partial() else p for p in placements],
    )
    gradient.get_tensor()._share_data_with(whole.get_tensor())


_lines: dict[Ranks, dist.ProcessMesh] = {}


def _line(ranks: Ranks) -> dist.ProcessMesh:
    """Return a mesh of one dimension."""
    if ranks not in _lines:
        _lines[ranks] = dist.ProcessMesh([*ranks], dim_names=["ranks"])
    return _lines[ranks]
