# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensors on auto-parallel's meshes: this rank's parts, and whom they sum over.

A norm is summed over the mesh dimensions on which the gradient is ``Shard``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import paddle.distributed as dist
from paddle import Tensor
from paddle.distributed.auto_parallel.process_mesh import (
    get_unique_process_mesh_map,
)

from paddle_adagc.parallel.layout import RankIds, TensorLayout, spread_of
from paddle_adagc.parallel.reduce import Reducer


class Meshes:
    """What a clip knows of the tensors that lie on meshes.

    ``layout`` has a model's tensors by index; their gradients may lie in other
    ways, and are asked in every step.
    """

    def __init__(self, layout: Iterable[TensorLayout] = ()) -> None:
        self._spreads = {
            index: tensor.spread
            for index, tensor in enumerate(layout)
            if tensor.spread is not None
        }
        self._reducer: Reducer | None = None  # of the last step

    def __bool__(self) -> bool:
        """Whether there is such a tensor."""
        return bool(self._spreads)

    def local_parts(
        self, indexes: Iterable[int], pairs: Iterable[tuple[Tensor, Tensor]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return parameters and this rank's parts of their gradients.

        Summands (``Partial``) are added up before, in place. Pairs that lie on
        other ranks alone are left out.
        """
        found = dict(self._spreads)
        here: list[tuple[Tensor, Tensor]] = []
        for index, (parameter, gradient) in zip(indexes, pairs, strict=True):
            if (whole := added_up(gradient)) is not gradient:  # as for AdamW
                gradient.get_tensor()._share_data_with(whole.get_tensor())
            spread = spread_of(gradient)
            if spread is not None:
                found[index] = spread
            if spread is None or dist.get_rank() in spread.ranks:
                here.append((parameter, local_value(gradient)))
        if found != self._spreads:
            self._spreads, self._reducer = found, None
        return here

    def reducer(self, num_tensors: int) -> Reducer:
        """Return the sums of a step, for vectors of ``num_tensors`` entries."""
        if self._reducer and len(self._reducer.counts) == num_tensors:
            return self._reducer
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        counts = [rank == 0] * num_tensors  # where every rank holds the tensor
        indexes: dict[tuple[int, RankIds], list[int]] = {}
        for index, spread in sorted(self._spreads.items()):
            counts[index] = rank == min(spread.ranks)
            for group in spread.groups:
                indexes.setdefault(group, []).append(index)
        world = None
        if any(len(s.ranks) < num_ranks for s in self._spreads.values()):
            if not dist.is_initialized():
                raise RuntimeError(
                    "tensors lie on different meshes, and their norms have to "
                    "be added up over all ranks: call paddle.distributed."
                    "init_parallel_env() first"
                )
            world = dist.get_group()
        # All ranks sum over dimension 0 first: else a rank would add what
        # another has summed already. One order means no waiting in a circle.
        reductions = [(_line(g[1]), indexes[g]) for g in sorted(indexes)]
        self._reducer = Reducer(reductions, counts, world=world)
        return self._reducer


@functools.cache
def _line(ranks: RankIds) -> dist.ProcessMesh:
    """Return a mesh of one dimension."""
    return dist.ProcessMesh([*ranks], dim_names=["ranks"])


def any_is_distributed(pairs: Iterable[tuple[Tensor, Tensor]]) -> bool:
    """Whether a gradient is a ``DistTensor``; asks none without a mesh."""
    return bool(get_unique_process_mesh_map()) and any(
        gradient.is_dist() for _, gradient in pairs
    )


def local_value(tensor: Tensor) -> Tensor:
    """Return this rank's part, in the same memory; a dense tensor itself."""
    return tensor._local_value() if tensor.is_dist() else tensor


def added_up(gradient: Tensor) -> Tensor:
    """Return a gradient with ``Replicate`` for ``Partial`` placements.

    It is a copy, or the gradient itself if it is whole.
    """
    placements = gradient.placements if gradient.is_dist() else ()
    if not any(placement.is_partial() for placement in placements):
        return gradient
    return dist.reshard(
        gradient,
        gradient.process_mesh,
        [dist.Replicate() if p.is_partial() else p for p in placements],
    )
