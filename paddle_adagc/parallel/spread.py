# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How auto-parallel lays a tensor over a mesh of processes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import paddle.distributed as dist
from paddle import Tensor

Ranks = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Spread:
    """The ranks of a ``DistTensor``'s mesh, and those that hold its parts."""

    ranks: Ranks
    """All ranks of the mesh."""

    groups: tuple[tuple[int, Ranks], ...] = ()
    """For each mesh dimension on which the placement is ``Shard``: its index
    and the ranks along it, this one among them. None on a rank outside of the
    mesh, and for a dimension of one rank."""


_spreads: dict[tuple[Ranks, Ranks, str], Spread] = {}


def spread_of(tensor: Tensor) -> Spread | None:
    """Where a tensor lies; None: it is no ``DistTensor``."""
    if not tensor.is_dist():
        return None
    mesh, placements = tensor.process_mesh, tensor.placements
    key = (tuple(mesh.process_ids), tuple(mesh.shape), str(placements))
    if key not in _spreads:
        ranks = np.reshape(mesh.process_ids, mesh.shape)
        _spreads[key] = _read(ranks, placements, dist.get_rank())
    return _spreads[key]


def _read(ranks: np.ndarray, placements: list[Any], rank: int) -> Spread:
    groups = []
    place = np.argwhere(ranks == rank)
    for axis, placement in enumerate(placements if len(place) else ()):
        if placement.is_shard() and ranks.shape[axis] > 1:
            line: list[Any] = [*place[0]]
            line[axis] = slice(None)
            groups.append((axis, tuple(ranks[tuple(line)].tolist())))
    return Spread(tuple(ranks.flatten().tolist()), tuple(groups))
