# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's plan: sizes, memory, the clip's communication, and its growth."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import (
    dygraph_sharding_optimizer,
)

import paddle_adagc
from paddle_adagc.checks import check_integer
from paddle_adagc.lab.models.shapes import ModelSize
from paddle_adagc.lab.paddleformers.recipe import (
    batch_change,
    read_run_config,
)
from paddle_adagc.lab.paddleformers.units import Followed, followed
from paddle_adagc.lab.plan import costs
from paddle_adagc.lab.plan.dry_run import RankPlan, plan_ranks
from paddle_adagc.lab.train.config import (
    ParallelConfig,
    RecordConfig,
    RunConfig,
)
from paddle_adagc.lab.train.tasks import PretrainTask, make_task
from paddle_adagc.parallel.layout import TensorLayout

SIZES = tuple(2**power for power in range(3, 15))
"""8 to 16,384 GPUs."""

_GAMMA_BYTES = 4
_GRADIENT_BYTES = 4
"""Gradients are float32 under every precision (``amp_master_grad``)."""

_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 2}
_MASTER_BYTES = {"float32": 0, "bfloat16": 4, "float16": 4, "float8": 4}
_STATE_BYTES = {"adamw": 8, "lion": 4, "muon": 8}
_MUON_MATRIX_BYTES = 4
_INTERCONNECT = costs.Interconnect()
_FORMERS_NOTE = (
    "PaddleFormers runs this recipe; stages and tensors below are those of "
    "this package's decoder, GlobalGC is fleet's. PaddleFormers cuts stages by "
    "a rule of its own, and its own GlobalGC also sums the experts' norm over "
    "their groups and the pipeline."
)


def with_parallel(config: RunConfig, parallel: ParallelConfig) -> RunConfig:
    """Return the run in another layout, without records and faults."""
    return dataclasses.replace(
        config,
        parallel=parallel,
        record=RecordConfig(),
        faults=[],
        train=dataclasses.replace(config.train, save_every=0),
    )


def resized(parallel: ParallelConfig, num_gpus: int) -> ParallelConfig:
    """Return the layout on another number of GPUs; refuse one that misfits.

    With sharding only the sharding degree changes, without it only the
    data-parallel degree.
    """
    check_integer("the number of GPUs", num_gpus, 1)
    fixed = {"tp": parallel.tp, "pp": parallel.pp}
    is_sharded = parallel.sharding > 1
    if is_sharded:
        fixed |= {"dp": parallel.dp}
    if parallel.ep > 1:  # a multiple of tp
        fixed |= {"tp": 1, "ep": parallel.ep}
    unit = math.prod(fixed.values())
    if num_gpus < unit or num_gpus % unit:
        below = num_gpus // unit * unit
        near = [f"{n:,}" for n in (below, below + unit) if n]
        names = " x ".join(f"{k} {v}" for k, v in fixed.items() if v > 1)
        raise ValueError(
            f"{num_gpus:,} GPUs are not a multiple of {names} = {unit}: "
            f"use {' or '.join(near)}"
        )
    degree = num_gpus // (parallel.tp * parallel.pp)
    if is_sharded:
        return dataclasses.replace(parallel, sharding=degree // parallel.dp)
    return dataclasses.replace(parallel, dp=degree)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one rank."""

    weights: int  # float32, or bfloat16 or float16 (under float8, too)
    gradients: int
    """float32, of all tensors of the rank: sharding stage 1 splits them only
    once they are summed."""

    optimizer: int  # float32 moments and master weights, of this rank's share
    activations: int  # see lab.models.activations

    @property
    def total(self) -> int:
        """Bytes of all four."""
        return sum(dataclasses.astuple(self))


def num_values(tensors: Sequence[TensorLayout]) -> int:
    """Count the trained values."""
    return sum(math.prod(tensor.shape) for tensor in tensors)


def optimizer_share(
    tensors: Sequence[TensorLayout], parallel: ParallelConfig
) -> list[tuple[TensorLayout, int]]:
    """Return a rank's tensors with the number of values that it optimizes.

    Sharding V2 gives every rank a slice of every tensor: over the sharding
    group, or for experts under expert parallelism over the ranks that hold the
    same experts. V1 gives whole tensors to ranks, as fleet does; the result is
    the share of the rank with the most values.
    """
    if parallel.sharding == 1:
        return [(t, math.prod(t.shape)) for t in tensors]
    if parallel.sharding_split_param:
        sharers = {True: parallel.moe_sharding, False: parallel.sharding}
        return [
            (t, math.ceil(math.prod(t.shape) / sharers[t.is_expert]))
            for t in tensors
        ]
    owned = dygraph_sharding_optimizer.DygraphShardingOptimizer
    dealt = owned._partition_parameters(
        SimpleNamespace(
            _parameter_list=tensors, _sharding_world_size=parallel.sharding
        )
    )
    return [
        (t, math.prod(t.shape)) for t in max(dealt.values(), key=num_values)
    ]


def rank_memory(
    tensors: Sequence[TensorLayout],
    matrices: Collection[str],
    config: RunConfig,
    activations: int,
) -> Memory:
    """Return the memory of a rank with these tensors before sharding.

    Of these Muon itself trains `matrices`; activations are in bytes.
    """
    precision, values = config.train.precision, num_values(tensors)
    name = config.optimizer.name
    optimizer = 0
    for tensor, share in optimizer_share(tensors, config.parallel):
        state = _STATE_BYTES[name]
        if name == "muon" and tensor.key in matrices:
            state = _MUON_MATRIX_BYTES
        optimizer += share * (state + _MASTER_BYTES[precision])
    return Memory(
        weights=values * _WEIGHT_BYTES[precision],
        gradients=values * _GRADIENT_BYTES,
        optimizer=optimizer,
        activations=activations,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePlan:
    """A rank of one pipeline stage."""

    stage: int
    rank: int  # the first of the stage
    tensors: int
    parameters: int
    gamma_bytes: int
    memory: Memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a run."""

    name: str  # the config's file
    config: RunConfig
    interconnect: costs.Interconnect
    recompute: bool
    size: ModelSize
    of_formers: Followed | None
    """What the clip follows in PaddleFormers; None: this package trains."""

    sample_length: str  # length of a sample in tokens, for people
    stages: Sequence[StagePlan]
    steps: Sequence[costs.StepCost]  # kinds of the clips' steps
    growth: Mapping[int, Sequence[costs.StepCost]]
    """The same by number of GPUs, without those that the layout misfits."""

    notes: Sequence[str]
    """Warnings about this layout, and a global batch that differs from the
    file's."""

    @property
    def worst_stage(self) -> StagePlan:
        """Stage with the most memory."""
        return max(self.stages, key=lambda stage: stage.memory.total)


def plan_run(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    num_gpus: int | None = None,
    interconnect: costs.Interconnect = _INTERCONNECT,
    recompute: bool = False,
) -> Plan:
    """Plan the run of a config file, without its tensors and its GPUs.

    ``num_gpus`` changes the layout, see :func:`resized`. With ``recompute``
    layers keep their input and recompute the rest.
    """
    config = read_run_config(path, overrides)
    if num_gpus is not None:
        config = with_parallel(config, resized(config.parallel, num_gpus))
    ranks, warned = _ranks_and_warnings(config)
    task = make_task(config)
    of_formers = followed(path, overrides, task.tensor_shapes())
    change = batch_change(config, path)
    return Plan(
        name=os.fspath(path),
        config=config,
        interconnect=interconnect,
        recompute=recompute,
        size=task.model_size(),
        of_formers=of_formers,
        sample_length=task.sample_length,
        stages=[
            _stage(stage, rank, task, recompute)
            for stage, rank in enumerate(ranks)
        ],
        steps=costs.step_costs(ranks, interconnect),
        growth=_grow(config, interconnect),
        notes=[
            *([change] if change else []),
            *warned,
            *([_FORMERS_NOTE] if of_formers else []),
        ],
    )


def _stage(
    stage: int, rank: RankPlan, task: PretrainTask, recompute: bool
) -> StagePlan:
    config, keys = task.config, [tensor.key for tensor in rank.tensors]
    activations = task.activation_bytes(stage, keys, recompute=recompute)
    return StagePlan(
        stage=stage,
        rank=rank.rank,
        tensors=len(rank.tensors),
        parameters=num_values(rank.tensors),
        gamma_bytes=_GAMMA_BYTES * len(rank.tensors),
        memory=rank_memory(rank.tensors, rank.matrices, config, activations),
    )


def _grow(
    config: RunConfig, interconnect: costs.Interconnect
) -> dict[int, list[costs.StepCost]]:
    """Cost the clips' steps on those of :data:`SIZES` that the layout fits."""
    growth = {}
    for number in SIZES:
        try:
            parallel = resized(config.parallel, number)
        except ValueError:
            continue
        print(f"planning {number:,} GPUs", file=sys.stderr, flush=True)
        ranks, _ = _ranks_and_warnings(with_parallel(config, parallel))
        growth[number] = costs.step_costs(ranks, interconnect)
    return growth


def _ranks_and_warnings(config: RunConfig) -> tuple[list[RankPlan], list[str]]:
    """Plan the ranks, and return the texts of this package's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ranks = plan_ranks(config)
    package = Path(paddle_adagc.__file__).parent
    texts = [
        str(warning.message)
        for warning in caught
        if Path(warning.filename).is_relative_to(package)
    ]
    return ranks, [*dict.fromkeys(texts)]
