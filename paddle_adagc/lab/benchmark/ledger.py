# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip costs in communication: an opt-in recorder of collectives."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
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
class Entry:
    """One collective that a clip called."""

    step: int
    """Call of the clip, from 0."""

    collective: str
    group: str
    """Axis of the topology (``"model"``, ``"sharding"``, ...), dimension of a
    mesh, or the ranks."""

    num_ranks: int
    num_bytes: int
    """Size of the tensor that this rank passes in."""


class CommunicationLedger:
    """Counts the collectives and bytes of the clips that it watches.

    Counts calls of ``paddle.distributed`` made while a watched clip runs, on
    this rank; a reshard of summands is the all-reduce that it makes. To watch a
    clip put the watched one in its place::

        ledger = CommunicationLedger()
        optimizer._inner_opt._grad_clip = ledger.watch(clip)

    Attributes:
        entries: In the order of the calls.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._step = 0

    def watch(self, clip: Callable[[Any], Any]) -> ClipGradBase:
        """Wrap ``clip``, which then works under this ledger's eyes."""
        return _WatchedClip(clip, self)

    def collectives(self, step: int) -> Counter[tuple[str, str, int]]:
        """Count a step's calls by (collective, group, bytes)."""
        return Counter(
            (entry.collective, entry.group, entry.num_bytes)
            for entry in self.entries
            if entry.step == step
        )

    def num_bytes(self, step: int) -> int:
        """Bytes that this rank passed to collectives in a step."""
        return sum(e.num_bytes for e in self.entries if e.step == step)

    @contextlib.contextmanager
    def _one_step(self) -> Iterator[None]:
        topology = read_topology()
        with contextlib.ExitStack() as patches:
            for name in _COLLECTIVES:
                patches.enter_context(
                    mock.patch.object(dist, name, self._counted(name, topology))
                )
            patches.enter_context(
                mock.patch.object(dist, "reshard", self._counted_reshard())
            )
            yield
        self._step += 1

    def _counted(
        self, name: str, topology: Topology | None
    ) -> Callable[..., Any]:
        function = getattr(dist, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            group = kwargs.get("group")
            ranks = [*range(dist.get_world_size())]
            if group is not None:
                ranks = [*group.ranks]
            tensors = [a for a in args if isinstance(a, Tensor)]
            self.entries.append(
                Entry(
                    step=self._step,
                    collective=name,
                    group=_group_name(ranks, topology),
                    num_ranks=len(ranks),
                    num_bytes=sum(
                        tensor.size * tensor.element_size()
                        for tensor in tensors
                    ),
                )
            )
            return function(*args, **kwargs)

        return counted

    def _counted_reshard(self) -> Callable[..., Any]:
        function = dist.reshard

        def counted(tensor: Tensor, mesh: Any, placements: list[Any]) -> Tensor:
            for axis, before in enumerate(tensor.placements):
                if before.is_partial() and placements[axis].is_replicated():
                    local = tensor._local_value()
                    group = f"mesh dimension {mesh.dim_names[axis]}"
                    if mesh.ndim == 1:
                        group = _group_name(mesh.process_ids, None)
                    self.entries.append(
                        Entry(
                            step=self._step,
                            collective="all_reduce",
                            group=group,
                            num_ranks=mesh.shape[axis],
                            num_bytes=local.size * local.element_size(),
                        )
                    )
            return function(tensor, mesh, placements)

        return counted


class _WatchedClip(ClipGradBase):
    def __init__(
        self, clip: Callable[[Any], Any], ledger: CommunicationLedger
    ) -> None:
        super().__init__()
        self._clip = clip
        self._ledger = ledger

    def _dygraph_clip(self, params_grads: Any) -> Any:
        with self._ledger._one_step():
            return self._clip(params_grads)


def _group_name(ranks: list[int], topology: Topology | None) -> str:
    if topology is not None:
        for field in dataclasses.fields(topology):
            axis = getattr(topology, field.name)
            known = getattr(axis, "group", None)
            if known is not None and list(known.ranks) == ranks:
                return field.name
    if len(ranks) == dist.get_world_size():
        return "world"
    return f"ranks {', '.join(map(str, ranks))}"
