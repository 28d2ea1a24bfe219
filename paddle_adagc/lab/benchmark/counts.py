# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip step costs, by count: collectives, and operations of a GPU.

Collectives are recorded while a clip runs. Of a GPU nothing was timed: kernel
launches and bytes are counted, those of the CUDA backend from the tables that
it launches by, those of Paddle's operators from its kernels
(:mod:`paddle_adagc.kernels.operators`). The time is a model of an H100: its
memory at 3.0 TB/s, and 3 us for each device operation. The slower of the two
rules a step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import paddle.distributed as dist
from paddle import Tensor
from paddle.nn.clip import ClipGradBase

from paddle_adagc.kernels.cuda.launch import Tables
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.models.shapes import Shape
from paddle_adagc.parallel.topology import Topology, read_topology

_COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "alltoall",
    "broadcast",
    "reduce",
    "reduce_scatter",
)
_BYTES_PER_SECOND = 3.0e12
_SECONDS_PER_OPERATION = 3e-6
WIDTHS = {"float32": 4, "bfloat16": 2}
"""Bytes of a value."""

# Of a tensor by operators: device operations, and bytes per value.
_NORM = {"float32": (2, 4), "bfloat16": (3, 10)}
_SCALE = {"float32": (1, 8), "bfloat16": (3, 20)}
_ZERO = {"float32": (1, 8), "bfloat16": (1, 4)}
_RULE_OPERATIONS = 25


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a clip step."""

    name: str  # function of paddle.distributed
    group: str
    """Axis of the topology (``"model"``, ``"sharding"``, ...), or the ranks."""

    ranks: tuple[int, ...]  # of the group
    num_bytes: int  # of the tensor that this rank passes in


class CommunicationLedger:
    """Records the collectives of the clips that it watches, on this rank.

    That is calls of ``paddle.distributed``.
    """

    def __init__(self) -> None:
        self.steps: list[list[Collective]] = []
        """By call of the clip, in the order of the calls."""

    def watch(self, clip: Callable[[Any], Any]) -> ClipGradBase:
        """Wrap ``clip`` and record its collectives."""
        return _WatchedClip(clip, self)

    def collectives(self, step: int) -> list[dict[str, Any]]:
        """Count a step's calls by collective, group and bytes."""
        counts = Counter(
            (call.name, call.group, call.num_bytes) for call in self.steps[step]
        )
        names = ("collective", "group", "bytes")
        return [
            {**dict(zip(names, call, strict=True)), "calls": calls}
            for call, calls in sorted(counts.items())
        ]

    @contextlib.contextmanager
    def one_step(self) -> Iterator[None]:
        """Record what is called inside."""
        topology = read_topology()
        counted: dict[str, Any] = {
            name: self._counted(name, topology) for name in _COLLECTIVES
        }
        self.steps.append([])
        with mock.patch.multiple(dist, **counted):
            yield

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
            num_bytes = sum(x.size * x.element_size() for x in tensors)
            of = _group_name(ranks, topology)
            call = Collective(name, of, tuple(ranks), num_bytes)
            self.steps[-1].append(call)
            return function(*args, **kwargs)

        return counted


class _WatchedClip(ClipGradBase):
    def __init__(
        self, clip: Callable[[Any], Any], ledger: CommunicationLedger
    ) -> None:
        super().__init__()
        self._clip = clip
        self._ledger = ledger

    def _dygraph_clip(self, params_grads: Any) -> Any:
        with self._ledger.one_step():
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


@dataclasses.dataclass(frozen=True)
class GpuCount:
    """One way to clip one list of tensors on a GPU."""

    name: str
    operations: int
    """Kernels and copies that the host starts in an adaptive step."""

    bytes_per_value: float
    num_values: int


def count_on_gpu(
    shapes: Sequence[Shape], share: float, dtype: str
) -> list[GpuCount]:
    """Count an adaptive step of each backend, and GlobalGC's.

    ``share`` of the values is scaled; ``dtype`` is a key of :data:`WIDTHS`.
    """
    sizes = np.array([math.prod(shape) for shape in shapes])
    num_tensors, width = len(sizes), WIDTHS[dtype]
    operations, num_bytes = zip(
        _NORM[dtype], _SCALE[dtype], _ZERO[dtype], strict=True
    )
    by_operators = num_tensors * sum(operations) + _RULE_OPERATIONS
    fused = Tables([dtype] * num_tensors, sizes).num_launches + 1
    num_values = int(sizes.sum())
    return [
        GpuCount("GlobalGC", 3 * num_tensors, 3 * width, num_values),
        GpuCount("AdaGC, operators", by_operators, sum(num_bytes), num_values),
        GpuCount(
            "AdaGC, CUDA kernels", fused, width * (1 + 2 * share), num_values
        ),
    ]


def gpu_table(counts: dict[str, list[GpuCount]]) -> str:
    """Pipe table of :func:`count_on_gpu`'s counts by dtype."""
    head = ["on a GPU, counted", "gradients", "device operations"]
    head += ["bytes per value", "modelled ms: bytes", "launches"]
    lines = []
    for dtype, rows in counts.items():
        for row in rows:
            seconds = row.bytes_per_value * row.num_values / _BYTES_PER_SECOND
            launching = row.operations * _SECONDS_PER_OPERATION
            lines.append(
                [
                    row.name,
                    dtype,
                    f"{row.operations:,}",
                    f"{row.bytes_per_value:.1f}",
                    f"{1e3 * seconds:.2f}",
                    f"{1e3 * launching:.2f}",
                ]
            )
    return markdown_table(head, lines, left=2)
