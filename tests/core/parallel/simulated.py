# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks simulated by threads: each holds slices, and sums over groups."""

import threading

import numpy as np
import paddle
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel import reduce
from paddle_adagc.parallel.agreement import merge
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.topology import Axis, Topology

SHAPES = {"norm": 6, "dense": 24, "split": 16, "expert.0": 12, "expert.1": 12}
STEPS = 12
ARGUMENTS = {"t_start": 6, "lambda_abs": 2.0}


_REDUCTIONS = {
    None: sum,
    reduce.dist.ReduceOp.SUM: sum,
    reduce.dist.ReduceOp.MAX: lambda parts: np.max(parts, 0),
    reduce.dist.ReduceOp.MIN: lambda parts: np.min(parts, 0),
}


class Ranks:
    """Threads whose all-reduce sums over a group, given as its ranks."""

    def __init__(self, monkeypatch, num_ranks):
        self.local = threading.local()
        self.calls = [[] for _ in range(num_ranks)]
        self.num_ranks = num_ranks
        self.barriers = {}
        self.values = {}
        self.lock = threading.Lock()
        monkeypatch.setattr(reduce.dist, "all_reduce", self.all_reduce)
        monkeypatch.setattr(reduce.dist, "all_gather_object", self.all_gather)
        monkeypatch.setattr(
            "paddle_adagc.parallel.other_ranks.read_topology",
            lambda: self.local.topology,
        )

    def all_reduce(self, tensor, op=None, group=None):
        self.calls[self.local.rank].append((group, tensor.shape[0]))
        total = _REDUCTIONS[op](self._exchange(tensor.numpy(), group))
        paddle.assign(paddle.to_tensor(total), tensor)

    def all_gather(self, values, value, group=None):
        values += self._exchange(value, group)

    def _exchange(self, value, group):
        rank = self.local.rank
        assert rank in group
        with self.lock:
            barrier = self.barriers.setdefault(
                group, threading.Barrier(len(group), timeout=20)
            )
            self.values[group, rank] = value
        barrier.wait()
        parts = [self.values[group, other] for other in group]
        barrier.wait()
        return parts

    def run(self, function):
        results, errors = [None] * self.num_ranks, []

        def work(rank):
            self.local.rank = rank
            try:
                results[rank] = function(rank, self.local)
            except Exception as error:
                errors.append(error)
                for barrier in self.barriers.values():
                    barrier.abort()

        threads = [
            threading.Thread(target=work, args=[rank])
            for rank in range(self.num_ranks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


def gradients(step):
    """Whole gradients; outliers in single tensors, an expert without tokens."""
    rng = np.random.default_rng(step)
    grads = {
        key: rng.normal(size=size).astype("float32")
        for key, size in SHAPES.items()
    }
    hit = list(SHAPES)[step % len(SHAPES)]
    grads[hit] *= 1e6 if step in (0, 3) else 20  # in the warm-up
    if step in (2, 8):
        grads["expert.1"][:] = 0
    return grads


def single_process(keys):
    """Clipped gradients and gammas of one process that holds everything."""
    clip = ClipGradByAdaGC(**ARGUMENTS)
    parameters = make_parameters([[SHAPES[key]] for key in keys])
    history = []
    for step in range(STEPS):
        grads = gradients(step)
        clipped = clip_arrays(clip, parameters, [grads[k] for k in keys])
        gamma = [float(g) for g in clip.state_dict()["gamma"].values()]
        history.append(
            (
                dict(zip(keys, clipped, strict=True)),
                dict(zip(keys, gamma, strict=True)),
            )
        )
    return history


def check(monkeypatch, topologies, parts, tied_copies=()):
    """Hold every rank's slices and gammas against one process' whole tensors.

    ``parts`` has per rank key -> slice of the whole gradient that the rank's
    optimizer is given; None: it knows the tensor but is given nothing.
    ``tied_copies`` are pairs of rank and key that an earlier stage counts.
    Gives per rank the (group, length) of every all-reduce.
    """
    keys = [key for key in SHAPES if any(key in part for part in parts)]
    history = single_process(keys)
    ranks = Ranks(monkeypatch, len(topologies))

    def work(rank, local):
        local.topology = topologies[rank]
        layout = {}
        parameters = {}
        for key, where in parts[rank].items():
            size = 1 if where is None else len(range(SHAPES[key])[where])
            (parameters[key],) = make_parameters([[max(size, 1)]])
            layout[parameters[key].name] = TensorLayout(
                key=key,
                is_tp_split=key == "split",
                is_expert=key.startswith("expert"),
                is_tied_copy=(rank, key) in tied_copies,
            )
        clip = ClipGradByAdaGC(**ARGUMENTS)
        clip._table.bind(layout)
        for step in range(STEPS):
            grads = gradients(step)
            given = {k: w for k, w in parts[rank].items() if w is not None}
            clipped = clip_arrays(
                clip,
                [parameters[key] for key in given],
                [grads[key][where] for key, where in given.items()],
            )
            expected = history[step][0]
            for (key, where), array in zip(given.items(), clipped, strict=True):
                np.testing.assert_allclose(
                    array,
                    expected[key][where],
                    rtol=1e-5,
                    atol=1e-7,
                    err_msg=f"rank {rank}, step {step}, {key}",
                )
        return clip, {clip._table.keys[slot] for slot in clip._observed}

    results = ranks.run(work)
    merged = merge(
        [(clip._state().to_numpy(), observed) for clip, observed in results],
        results[0][0]._kept,
    )
    assert sorted(merged.keys) == sorted(keys)
    for key, value in zip(merged.keys, merged.values["gamma"], strict=True):
        np.testing.assert_allclose(value, history[-1][1][key], rtol=1e-5)
    return ranks.calls


WHOLE = slice(None)


def half(rank, size):
    return slice(rank * size // 2, (rank + 1) * size // 2)


def axis(rank, *group):
    return Axis(group.index(rank), len(group), group)


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
