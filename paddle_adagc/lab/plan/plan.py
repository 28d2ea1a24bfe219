# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's plan: sizes, memory, the clip's communication, and its growth."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import paddle_adagc
from paddle_adagc.lab.models.sizes import ModelSize
from paddle_adagc.lab.paddleformers.recipe import (
    batch_change,
    is_recipe,
    load_recipe,
    model_settings,
    read_run_config,
)
from paddle_adagc.lab.plan.cluster import SIZES, resized, with_parallel
from paddle_adagc.lab.plan.costs import StepCost, step_costs
from paddle_adagc.lab.plan.dry_run import RankPlan, plan_ranks
from paddle_adagc.lab.plan.gpu_hours import Comparison, compare
from paddle_adagc.lab.plan.interconnect import Interconnect
from paddle_adagc.lab.plan.memory import (
    Memory,
    clipped_bytes,
    num_values,
    rank_memory,
)
from paddle_adagc.lab.train.architectures import make_task
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.task import PretrainTask

GAMMA_BYTES = 4
_FORMERS_NOTE = (
    "PaddleFormers runs this recipe; stages and tensors below are those of "
    "this package's decoder, GlobalGC is fleet's. PaddleFormers cuts stages by "
    "a rule of its own, its fused tensors make AdaGC's sums shorter, and its "
    "own GlobalGC also sums the experts' norm over their groups and the "
    "pipeline."
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePlan:
    """A rank of one pipeline stage."""

    stage: int
    rank: int
    """The first of the stage."""

    tensors: int
    parameters: int
    gamma_bytes: int
    memory: Memory
    clipped_bytes: int
    """Bytes of the gradients that the rank's clip gets."""

    def local_us(self, interconnect: Interconnect) -> float:
        """Microseconds of the clip's own passes over the gradients.

        GlobalGC and AdaGC read them once for the norms, and read and write
        them once to scale them.
        """
        return interconnect.local_us(3 * self.clipped_bytes)


@dataclasses.dataclass(frozen=True)
class Growth:
    """The clip's steps on a number of GPUs."""

    num_gpus: int
    steps: tuple[StepCost, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a run."""

    name: str
    """The config's file."""

    config: RunConfig
    interconnect: Interconnect
    recompute: bool
    size: ModelSize
    sample_length: str
    """Length of a sample in tokens, for people."""

    stages: tuple[StagePlan, ...]
    steps: tuple[StepCost, ...]
    growth: tuple[Growth, ...]
    not_fitting: tuple[int, ...]
    """Numbers of GPUs that ``growth`` leaves out."""

    paper: tuple[Comparison, ...]
    notes: tuple[str, ...]
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
    interconnect: Interconnect | None = None,
    recompute: bool = False,
    sizes_to_grow: Sequence[int] | None = None,
) -> Plan:
    """Plan the run of a config file, without its tensors and its GPUs.

    Args:
        path: Run config (see :func:`paddle_adagc.lab.train.parse.load_config`)
            or recipe for PaddleFormers.
        overrides: ``key=value``.
        num_gpus: Number of GPUs, instead of the config's; see
            :func:`paddle_adagc.lab.plan.cluster.resized`.
        interconnect: Links of the cluster; default: :class:`Interconnect`.
        recompute: Layers keep their input and recompute the rest.
        sizes_to_grow: Numbers of GPUs to compare; default
            :data:`.cluster.SIZES`. Numbers that the layout does not fit on
            are left out.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Bad settings, or a layout that the model does not fit in.
    """
    interconnect = interconnect or Interconnect()
    config, formers = _read(path, overrides)
    if num_gpus is not None:
        parallel = resized(config.parallel, num_gpus)
        config = with_parallel(config, parallel)
    ranks, notes = _warnings_of(partial(plan_ranks, config))
    task = make_task(config)
    size = task.model_size()
    if not formers.get("fuse_attn_ffn", False):
        size = dataclasses.replace(size, tensors_if_fused=None)
    stages = tuple(
        _stage(stage, rank, task, recompute) for stage, rank in enumerate(ranks)
    )
    numbers = SIZES if sizes_to_grow is None else sizes_to_grow
    growth = _grow(config, numbers, interconnect)
    fitting = {row.num_gpus for row in growth}
    return Plan(
        name=os.fspath(path),
        config=config,
        interconnect=interconnect,
        recompute=recompute,
        size=size,
        sample_length=task.sample_length,
        stages=stages,
        steps=tuple(step_costs(ranks, interconnect)),
        growth=tuple(growth),
        not_fitting=tuple(n for n in numbers if n not in fitting),
        paper=tuple(compare(interconnect)),
        notes=tuple(
            note
            for note in (
                batch_change(config, path),
                *notes,
                _FORMERS_NOTE if formers else None,
            )
            if note is not None
        ),
    )


def _read(
    path: str | os.PathLike[str], overrides: Sequence[str]
) -> tuple[RunConfig, dict[str, Any]]:
    """Read the run, and PaddleFormers' model settings if that trains it."""
    config = read_run_config(path, overrides)
    if not is_recipe(path):
        return config, {}
    with warnings.catch_warnings():  # said once, by read_run_config
        warnings.simplefilter("ignore")
        return config, model_settings(load_recipe(path, overrides))


def _stage(
    stage: int,
    rank: RankPlan,
    task: PretrainTask,
    recompute: bool,
) -> StagePlan:
    config, keys = task.config, [tensor.key for tensor in rank.tensors]
    activations = task.activation_bytes(stage, keys, recompute=recompute)
    return StagePlan(
        stage=stage,
        rank=rank.rank,
        tensors=len(rank.tensors),
        parameters=num_values(rank.tensors),
        gamma_bytes=GAMMA_BYTES * len(rank.tensors),
        memory=rank_memory(rank.tensors, rank.matrices, config, activations),
        clipped_bytes=clipped_bytes(rank.tensors, config.parallel),
    )


def _grow(
    config: RunConfig, num_gpus: Sequence[int], interconnect: Interconnect
) -> list[Growth]:
    rows = []
    for number in num_gpus:
        try:
            parallel = resized(config.parallel, number)
        except ValueError:
            continue
        larger = with_parallel(config, parallel)
        ranks, _ = _warnings_of(partial(plan_ranks, larger))
        rows.append(Growth(number, tuple(step_costs(ranks, interconnect))))
    return rows


def _warnings_of(function: Callable[[], T]) -> tuple[T, list[str]]:
    """Return a function's result, and the texts of this package's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function()
    package = Path(paddle_adagc.__file__).parent
    texts = [
        str(warning.message)
        for warning in caught
        if Path(warning.filename).is_relative_to(package)
    ]
    return result, [*dict.fromkeys(texts)]
