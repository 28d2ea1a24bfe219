# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time of an all-reduce, from latency per link and bytes per second."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal

from paddle_adagc.lab.section import Count, Positive, section

Algorithm = Literal["ring", "tree"]
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree")


@section
class Interconnect:
    """Nodes of GPUs on NVLink, and InfiniBand between them.

    Latencies are NCCL's own for its low-latency (LL) protocol, which it takes
    for messages of a few kB: ``baseLat`` and ``hwLat``
    of ``src/graph/tuning.cc`` in NCCL 2.19 and later. Bandwidths are those of
    data sheets, one direction: NVLink 4 of an H100 (900 GB/s both ways), one
    400 Gbit/s InfiniBand adapter per GPU, the HBM3 of an H100 SXM. None of
    these numbers was measured here.
    """

    gpus_per_node: Count = 8
    """GPUs on one NVLink; ranks fill the nodes in their order."""

    launch_us: Positive = 6.6
    """Microseconds of an all-reduce before its first message."""

    nvlink_us: Positive = 0.6
    """Microseconds of a message between two GPUs of a node."""

    ib_ring_us: Positive = 2.7
    """Microseconds of a message of a ring between two nodes."""

    ib_tree_us: Positive = 5.0
    """Microseconds of a message of a tree between two nodes."""

    nvlink_gb_per_s: Positive = 450.0
    """GB/s of a GPU inside of its node."""

    ib_gb_per_s: Positive = 50.0
    """GB/s of a GPU between nodes."""

    memory_gb_per_s: Positive = 3350.0
    """GB/s of a GPU's own memory, for local work."""

    def all_reduce_us(
        self, ranks: Collection[int], num_bytes: int, algorithm: Algorithm
    ) -> float:
        """Microseconds of an all-reduce, by the alpha-beta model.

        With p ranks on k nodes, at most m on each: a ring passes 2 (p - 1)
        messages one after the other, 2 (k - 1) of them between nodes, and moves
        2 (p - 1) / p of the bytes; a tree passes 2 (m - 1) inside of a node and
        2 log2(k) between nodes, and moves the bytes twice. The slowest link
        sets the bandwidth (Thakur et al. 2005; NCCL counts the same hops).

        Args:
            ranks: Ranks of the group.
            num_bytes: Bytes of the tensor.
            algorithm: ``"ring"`` or ``"tree"``.
        """
        size = len(ranks)
        if size == 1:
            return 0.0
        on_node: dict[int, int] = {}
        for rank in ranks:
            node = rank // self.gpus_per_node
            on_node[node] = on_node.get(node, 0) + 1
        num_nodes = len(on_node)
        if algorithm == "ring":
            inside = 2 * (size - num_nodes)
            between = 2 * (num_nodes - 1) * self.ib_ring_us
            moved = 2 * (size - 1) / size * num_bytes
        else:
            inside = 2 * (max(on_node.values()) - 1)
            between = 2 * math.ceil(math.log2(num_nodes)) * self.ib_tree_us
            moved = 2.0 * num_bytes
        bandwidth = self.ib_gb_per_s if num_nodes > 1 else self.nvlink_gb_per_s
        return (
            self.launch_us
            + inside * self.nvlink_us
            + between
            + moved / (bandwidth * 1e3)
        )

    def local_us(self, num_bytes: int) -> float:
        """Microseconds to move bytes from and to a GPU's own memory."""
        return num_bytes / (self.memory_gb_per_s * 1e3)


def parse_interconnect(settings: Sequence[str]) -> Interconnect:
    """Return the default interconnect, changed by ``key=value``.

    Raises:
        ValueError: An unknown key (the nearest is named), or a bad value.
    """
    values = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        values[key] = int(text) if text.isdecimal() else text
    try:
        return Interconnect(**values)  # type: ignore[arg-type]
    except ValueError as error:
        raise ValueError(f"interconnect: {error}") from error
