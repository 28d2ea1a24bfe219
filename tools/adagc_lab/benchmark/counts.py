# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The collectives of a clip step, recorded while the clip runs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import paddle.distributed as dist
from paddle import Tensor
from paddle.nn.clip import ClipGradBase

from paddle_adagc.parallel.topology import Topology, read_topology

_COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "alltoall",
    "broadcast",
    "reduce",
    "reduce_scatter",
)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a clip step."""

    name: str  # function of paddle.distributed
    group: str
    """Axis of the topology (``"model"``, ``"sharding"``, ...), or the ranks."""

    num_bytes: int  # of the tensor that this rank passes in


def count(calls: Iterable[Collective]) -> list[dict[str, Any]]:
    """Count a step's calls by collective, group and bytes."""
    counts = Counter((call.name, call.group, call.num_bytes) for call in calls)
    names = ("collective", "group", "bytes")
    return [
        {**dict(zip(names, call, strict=True)), "calls": number}
        for call, number in sorted(counts.items())
    ]


class WatchedClip(ClipGradBase):
    """A clip whose calls of ``paddle.distributed`` are recorded, on this rank.

    ``steps`` has the collectives by call of the clip.
    """

    def __init__(self, clip: Callable[[Any], Any]) -> None:
        super().__init__()
        self._clip = clip
        self.steps: list[list[Collective]] = []

    def _dygraph_clip(self, params_grads: Any) -> Any:
        topology = read_topology()
        self.steps.append([])
        counted: dict[str, Any] = {
            name: self._counted(name, topology) for name in _COLLECTIVES
        }
        with mock.patch.multiple(dist, **counted):
            return self._clip(params_grads)

    def _counted(self, name: str, topology: Topology) -> Callable[..., Any]:
        function, calls = getattr(dist, name), self.steps[-1]

        def counted(*args: Any, **kwargs: Any) -> Any:
            group = kwargs.get("group")
            ranks = [*(group.ranks if group else range(dist.get_world_size()))]
            tensors = [a for a in args if isinstance(a, Tensor)]
            num_bytes = sum(x.size * x.element_size() for x in tensors)
            of = _group_name(ranks, topology)
            calls.append(Collective(name, of, num_bytes))
            return function(*args, **kwargs)

        return counted


def _group_name(ranks: list[int], topology: Topology) -> str:
    for field in dataclasses.fields(topology):
        known = getattr(getattr(topology, field.name), "group", None)
        if known is not None and list(known.ranks) == ranks:
            return field.name
    if len(ranks) == dist.get_world_size():
        return "world"
    return f"ranks {', '.join(map(str, ranks))}"
