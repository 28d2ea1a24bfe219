# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks simulated by threads, which sum over groups; and their topologies."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import paddle
import paddle.distributed as dist

from paddle_adagc.parallel.topology import Axis, Topology

READ_TOPOLOGY = "paddle_adagc.parallel.ranks.read_topology"


class Group(tuple):
    """Its ranks."""

    ranks = property(tuple)


class Ranks:
    """Threads that sum over groups and gather from them."""

    def __init__(self, monkeypatch, topologies):
        self.topologies = topologies
        self.local = threading.local()
        self.calls = [[] for _ in topologies]
        self.barriers, self.values = {}, {}
        self.lock = threading.Lock()
        for name, function in {
            "all_reduce": self.all_reduce,
            "all_gather_object": self.all_gather,
            "get_rank": lambda: self.local.rank,
            "get_world_size": lambda: len(topologies),
            "is_initialized": lambda: True,
        }.items():
            monkeypatch.setattr(dist, name, function)
        monkeypatch.setattr(
            READ_TOPOLOGY, lambda: self.topologies[self.local.rank]
        )

    def all_reduce(self, tensor, op=None, group=None):
        self.calls[self.local.rank].append((group, tensor.shape[0]))
        parts = self._exchange(tensor.numpy(), group)
        is_max = op == dist.ReduceOp.MAX
        total = np.max(parts, 0) if is_max else sum(parts)
        paddle.assign(paddle.to_tensor(total), tensor)

    def all_gather(self, values, value, group=None):
        everyone = Group(range(len(self.topologies)))
        values += self._exchange(value, group or everyone)

    def _exchange(self, value, group):
        rank = self.local.rank
        assert rank in group
        with self.lock:
            barrier = self.barriers.setdefault(
                group, threading.Barrier(len(group), timeout=600)
            )
            self.values[group, rank] = value
        barrier.wait()
        parts = [self.values[group, other] for other in group]
        barrier.wait()
        return parts

    def run(self, function, *arguments):
        """What ``function(rank, *arguments)`` returns on each rank."""
        errors = []

        def work(rank):
            self.local.rank = rank
            try:
                return function(rank, *arguments)
            except Exception as error:
                errors.append(error)
                for barrier in self.barriers.values():
                    barrier.abort()

        with ThreadPoolExecutor(len(self.topologies)) as pool:
            results = [*pool.map(work, range(len(self.topologies)))]
        if errors:
            raise errors[0]
        return results


def axis(rank, *group):
    return Axis(group.index(rank), len(group), Group(group))


def along(name, count=2, **options):
    """Topologies of the ranks on one axis."""
    world = tuple(range(count))
    return [
        Topology(**{name: axis(r, *world)}, world=world, **options)
        for r in world
    ]


def grid(rows, columns, **options):
    """Topologies of ranks 0 1 | 2 3: the axis along the rows, and the other."""
    return [
        Topology(
            **{rows: axis(r, *[(0, 1), (2, 3)][r // 2])},
            **{columns: axis(r, *[(0, 2), (1, 3)][r % 2])},
            world=(0, 1, 2, 3),
            **options,
        )
        for r in range(4)
    ]


def expert_topologies(num_expert_ranks, num_moe_sharding_ranks, mp=1):
    """EP inside of moe_sharding; dense tensors are sharded over all."""
    world = tuple(range(num_expert_ranks * num_moe_sharding_ranks))

    def among(rank, key):
        group = [other for other in world if key(other) == key(rank)]
        return axis(rank, *group) if len(group) > 1 else Axis()

    return [
        Topology(
            model=among(r, lambda o: o // mp),
            sharding=among(r, lambda o: o % mp),
            expert=among(r, lambda o: o // num_expert_ranks),
            moe_sharding=among(r, lambda o: o % num_expert_ranks),
            splits_parameters=True,
            world=world,
        )
        for r in world
    ]
