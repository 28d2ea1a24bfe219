# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One rank of a run of any size, in this process and without its tensors.

The plan runs the code of the real run instead of repeating its rules:
:mod:`adagc_lab.train.processes` starts the rank, fleet makes its groups,
the model is built, the clip is bound and makes its steps. Four things are
replaced: groups are lists of ranks that nobody joins, collectives do nothing,
parameters have shapes but no memory, and the clip's one comparison of ranks is
left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed import fleet
from paddle.distributed.communication.group import Group
from paddle.distributed.fleet.base import topology as fleet_topology
from paddle.distributed.fleet.base.topology import (
    CommunicateTopology,
    ParallelMode,
)
from paddle.distributed.fleet.layers.mpu.random import get_rng_state_tracker
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import (
    hybrid_parallel_optimizer,
)
from paddle.distributed.fleet.utils.log_util import logger
from paddle.nn.clip import ClipGradBase

from adagc_lab.benchmark.counts import Collective, WatchedClip
from adagc_lab.extensions import make_clip
from adagc_lab.train import processes, tasks
from adagc_lab.train.tasks import PretrainTask
from paddle_adagc.optimizers.muon import hidden_matrices
from paddle_adagc.parallel.layout import TensorLayout, read_layout
from paddle_adagc.parallel.ranks import Ranks

GLOBAL_GC = "GlobalGC"
ADAGC_WARM_UP = "AdaGC, warm-up"
ADAGC = "AdaGC, adaptive"


@dataclasses.dataclass(frozen=True)
class RankPlan:
    """Tensors of one rank, and the communication of its clip."""

    rank: int
    tensors: tuple[TensorLayout, ...]
    """In the order of the model, before sharding."""

    matrices: frozenset[str]  # keys of the tensors that Muon trains itself
    steps: Mapping[str, tuple[Collective, ...]]
    """By kind of step: :data:`GLOBAL_GC`, as fleet makes it,
    :data:`ADAGC_WARM_UP` and :data:`ADAGC`."""


def plan_ranks(task: PretrainTask, clip: Mapping[str, Any]) -> list[RankPlan]:
    """Plan the first rank of every pipeline stage.

    ``clip`` is that section of the run's config, ``task`` has the layout.

    All ranks of a stage hold the same number of values and communicate equally
    often: data-parallel and sharding ranks by construction, tensor- and
    expert-parallel ranks because they share evenly.
    """
    found, ranks = [], [0]
    for rank in ranks:
        with as_rank(task, rank):
            if rank == 0 and task.parallel.pp > 1:
                groups = fleet.get_hybrid_communicate_group()
                ranks += groups.get_pipe_parallel_group().ranks[1:]
            model = build_without_memory(task)
            found.append(_plan_rank(clip, rank, model))
    return found


def _plan_rank(clip: Mapping[str, Any], rank: int, model: nn.Layer) -> RankPlan:
    (global_gc,) = _clip_calls(_global_gc(), 1)
    settings: dict[str, Any] = {"name": "adagc"}
    if clip.get("name") == "adagc":
        # Overrides add no collective, and one rank alone cannot tell that a
        # pattern matches no tensor.
        settings = {k: v for k, v in clip.items() if k != "overrides"}
    adagc = make_clip(**settings | {"t_start": 1})
    adagc.bind(model)
    warm_up, adaptive = _clip_calls(adagc, 2)
    layout, is_matrix = read_layout(model), hidden_matrices(model)
    return RankPlan(
        rank=rank,
        tensors=tuple(layout.values()),
        matrices=frozenset(
            tensor.key for name, tensor in layout.items() if is_matrix(name)
        ),
        steps={GLOBAL_GC: global_gc, ADAGC_WARM_UP: warm_up, ADAGC: adaptive},
    )


@contextlib.contextmanager
def as_rank(task: PretrainTask, rank: int) -> Iterator[None]:
    """Act as a rank of the run: fleet's topology is that rank's."""
    world = Group(rank, 0, list(range(task.parallel.num_processes)))
    functions: dict[str, Callable[..., Any]] = {
        "all_reduce": lambda *args, **kwargs: None,
        "broadcast": lambda *args, **kwargs: None,
        "get_group": lambda *args: world,
        "get_rank": lambda group=None: (group or world).rank,
        "get_world_size": lambda group=None: (group or world).nranks,
        "is_initialized": lambda: world.nranks > 1,
        "new_group": lambda ranks, **_: Group(
            ranks.index(rank) if rank in ranks else -1, 1, list(ranks)
        ),
    }
    with contextlib.ExitStack() as stack:
        for name, function in functions.items():
            stack.enter_context(mock.patch.object(dist, name, function))
        for patch in (
            mock.patch.object(dist.ParallelEnv, "device_id", 0),
            mock.patch.object(fleet, "init", _make_groups),
            mock.patch.object(CommunicateTopology, "get_axis_list", axis_list),
            mock.patch.object(processes, "enable"),
            # One step's, in which ranks wait for each other.
            mock.patch.object(Ranks, "agree_once"),
            mock.patch.object(Ranks, "compare_once"),
            mock.patch.object(logger, "disabled", True),
            mock.patch.dict(fleet.fleet.__dict__),
            mock.patch.object(fleet_topology, "_HYBRID_PARALLEL_GROUP", None),
            _same_random_numbers(),
        ):
            stack.enter_context(patch)
        processes.start_processes(task.parallel, task.train)
        yield


def build_without_memory(task: PretrainTask) -> nn.Layer:
    with paddle.LazyGuard(), mock.patch.object(tasks, "initialize_weights"):
        return task.build_model()


def _make_groups(is_collective: bool, strategy: Any, log_level: str) -> None:
    """Do the part of ``fleet.init`` that needs no other process."""
    fleet.fleet._user_defined_strategy = strategy
    fleet.fleet._init_hybrid_parallel_env()


def axis_list(
    topology: CommunicateTopology, axis_name: str, index: int
) -> list[int]:
    """Replace fleet's ``get_axis_list`` without a loop over the ranks.

    Fleet asks for each index of an axis, and its own function passes over all
    ranks each time: 10 seconds for 16,384 data-parallel ranks.
    """
    names = topology.get_hybrid_group_names()
    ranks = np.arange(topology.world_size())
    ranks = ranks.reshape([topology.get_dim(name) for name in names])
    return ranks.take(index, axis=names.index(axis_name)).ravel().tolist()


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Restore the random generators, which fleet seeds for each layout."""
    tracker = get_rng_state_tracker()
    state, states = paddle.get_rng_state(), tracker.get_states_tracker()
    places, seeds = dict(tracker.states_), set(tracker.seeds_)
    try:
        yield
    finally:
        paddle.set_rng_state(state)
        tracker.states_, tracker.seeds_ = places, seeds
        tracker.set_states_tracker(states)


def _global_gc() -> ClipGradBase:
    """Make Paddle's clip in the wrapper of fleet's optimizer."""
    clip = make_clip("global_norm")
    groups = getattr(fleet.fleet, "_hcg", None)
    if groups is None or (
        groups.get_parallel_mode() == ParallelMode.DATA_PARALLEL
    ):
        return clip
    return hybrid_parallel_optimizer.HybridParallelClipGrad(clip, groups)


def _clip_calls(
    clip: ClipGradBase, num_steps: int
) -> list[tuple[Collective, ...]]:
    """Record the collectives of the clip's first steps.

    The clip gets no gradients: its communication must not depend on them, or a
    rank without a gradient would block the others.
    """
    watched = WatchedClip(clip)
    for _ in range(num_steps):
        watched([])
    return [tuple(calls) for calls in watched.steps]
