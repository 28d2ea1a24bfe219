# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's plan: sizes, memory, the clip's communication, and its growth."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import paddle_adagc
from adagc_lab.benchmark.counts import Collective
from adagc_lab.markdown import markdown_table
from adagc_lab.models.shapes import ModelSize
from adagc_lab.paddleformers.recipe import batch_change, read_run_config
from adagc_lab.paddleformers.units import Followed, followed
from adagc_lab.plan import costs
from adagc_lab.plan.dry_run import RankPlan, plan_ranks
from adagc_lab.train.config import (
    ParallelConfig,
    RecordConfig,
    RunConfig,
)
from adagc_lab.train.tasks import PretrainTask, make_task
from paddle_adagc.checks import check_integer

SIZES = tuple(2**power for power in range(3, 15))  # 8 to 16,384 GPUs

_GAMMA_BYTES = 4
_INTERCONNECT = costs.Interconnect()
_FORMERS_NOTE = (
    "PaddleFormers runs this recipe; stages and tensors below are those of "
    "this package's decoder, GlobalGC is fleet's. PaddleFormers cuts stages by "
    "a rule of its own, and its own GlobalGC also sums the experts' norm over "
    "their groups and the pipeline."
)
_WIDTH = 96
_GIB = 2**30

_MEMORY_NOTE = """
Activations are those that the backward pass needs (Korthikanti et al. 2022;
the formula stands in tools/adagc_lab/models/activations.py), of as many
micro-batches as 1F1B keeps on a stage. Left out: workspaces, fragments of the
allocator, buffers of NCCL and of the pipeline, unfused operators' float32
copies, FP8 copies of weights, the CUDA context: allow for some GiB more.
"""
_CLIP_NOTE = """
Groups, counts and bytes come from a dry run of fleet's and of this package's
own code, on the stage where they take longest; times from an alpha-beta model
of the faster of rings and trees, with NCCL's own latencies and data-sheet
bandwidths (--interconnect changes them), nothing of it measured. Left out:
waiting for the slowest rank, kernel launches, contention, overlap.
"""


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

    With sharding or experts' parallelism only the sharding degree changes, else
    only the data-parallel degree.
    """
    check_integer("the number of GPUs", num_gpus, 1)
    fixed = {"tp": parallel.tp, "pp": parallel.pp}
    is_sharded = parallel.sharding > 1 or parallel.ep > 1
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
class Plan:
    """Plan of a run."""

    name: str  # the config's file
    config: RunConfig
    task: PretrainTask
    size: ModelSize
    of_formers: Followed | None
    """What the clip follows in PaddleFormers; None: this package trains."""

    ranks: Sequence[RankPlan]  # of each pipeline stage the first
    memory: Sequence[costs.Memory]  # of these
    steps: Sequence[costs.StepCost]  # kinds of the clips' steps
    growth: Mapping[int, Sequence[costs.StepCost]]
    """The same by number of GPUs, without those that the layout misfits."""

    notes: Sequence[str]
    """Warnings about this layout, and a global batch that differs from the
    file's."""


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
    task = make_task(config)
    task.check_layout()
    ranks, warned = _ranks_and_warnings(task, config.clip)
    of_formers = followed(path, overrides, task.tensor_shapes())
    change = batch_change(config, path)
    return Plan(
        name=os.fspath(path),
        config=config,
        task=task,
        size=task.model_size(),
        of_formers=of_formers,
        ranks=ranks,
        memory=[
            costs.rank_memory(
                rank, stage, task, config.optimizer.name, recompute=recompute
            )
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
        task = make_task(with_parallel(config, parallel))
        ranks, _ = _ranks_and_warnings(task, config.clip)
        growth[number] = costs.step_costs(ranks, interconnect)
    return growth


def _ranks_and_warnings(
    task: PretrainTask, clip: Mapping[str, Any]
) -> tuple[list[RankPlan], list[str]]:
    """Plan the ranks, and return the texts of this package's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ranks = plan_ranks(task, clip)
    package = Path(paddle_adagc.__file__).parent
    texts = [
        str(warning.message)
        for warning in caught
        if Path(warning.filename).is_relative_to(package)
    ]
    return ranks, [*dict.fromkeys(texts)]


def render(plan: Plan) -> str:
    blocks = [
        _section(f"Plan of {plan.name}", _run_lines(plan)),
        _section("Memory of a GPU (GiB)", _memory_lines(plan), _MEMORY_NOTE),
        _section("The clip's communication in a step", _clip_lines(plan)),
        _section("As the cluster grows", _growth_lines(plan), _CLIP_NOTE),
    ]
    return "\n\n".join(blocks)


def _section(title: str, lines: Sequence[str], note: str = "") -> str:
    parts = [title, "-" * len(title), *lines]
    if note:
        parts += ["", *textwrap.wrap(note.strip(), _WIDTH)]
    return "\n".join(parts)


def _run_lines(plan: Plan) -> list[str]:
    config, size = plan.config, plan.size
    parallel = config.parallel
    degrees = ("dp", "sharding", "tp", "pp", "ep")
    layout = ", ".join(f"{d} {getattr(parallel, d)}" for d in degrees)
    rows = {
        "GPUs": f"{parallel.num_processes:,} ({layout})",
        "sequences per step": f"{config.global_batch:,} of "
        f"{plan.task.sample_length} tokens",
        "precision, optimizer": f"{config.train.precision}, "
        f"{config.optimizer.name}",
        "parameters": f"{size.parameters:,} ({size.parameters / 1e9:.2f}B)",
        "active for a token": f"{size.active_parameters:,} "
        f"({size.active_parameters / 1e9:.2f}B)",
        "tensors": f"{size.tensors:,}",
    }
    if size.tensors_without_routers != size.tensors:
        rows["tensors"] += (
            f", {size.tensors_without_routers:,} without routers (the paper's "
            "count)"
        )
    if plan.of_formers is not None:
        rows["in PaddleFormers"] = str(plan.of_formers)
    most = _GAMMA_BYTES * max(len(rank.tensors) for rank in plan.ranks)
    rows["gamma"] = (
        f"{size.gamma_bytes:,} B in all, {most:,} B at most on a GPU"
    )
    width = max(map(len, rows))
    lines = [f"{key.ljust(width)}  {value}" for key, value in rows.items()]
    for note in plan.notes:
        lines += textwrap.wrap(f"Note: {note}", _WIDTH)
    return lines


def _memory_lines(plan: Plan) -> list[str]:
    head = ["stage", "tensors", "weights", "gradients", "optimizer"]
    head += ["activations", "total"]
    rows = [
        (
            number,
            f"{len(rank.tensors):,}",
            *(f"{x / _GIB:.2f}" for x in dataclasses.astuple(memory)),
            f"{memory.total / _GIB:.2f}",
        )
        for number, (rank, memory) in enumerate(
            zip(plan.ranks, plan.memory, strict=True)
        )
    ]
    return markdown_table(head, rows, left=0, pad=True).splitlines()


def _clip_lines(plan: Plan) -> list[str]:
    width = max(len(step.step) for step in plan.steps)
    lines = []
    for step in plan.steps:
        calls = [
            f"{len([*same])} {call.name} of {call.num_bytes:,} B over "
            f"{_group_name(call)} ({len(call.ranks):,} ranks)"
            for call, same in groupby(step.collectives)
        ]
        calls = [*calls, f"{step.us:,.1f} us"] if calls else ["nothing"]
        for number, call in enumerate(calls):
            name = step.step if number == 0 else ""
            lines.append(f"{name.ljust(width)}  {call}")
    return lines


def _group_name(call: Collective) -> str:
    return "several axes" if call.group[:6] == "ranks " else call.group


def _growth_lines(plan: Plan) -> list[str]:
    if not plan.growth:
        return ["The layout fits on none of the sizes looked at."]
    head = ["GPUs"]
    for step in plan.steps:
        head += [step.step, "us"]
    rows = []
    for num_gpus, steps in plan.growth.items():
        cells = [f"{num_gpus:,}"]
        for step in steps:
            number = len(step.collectives)
            calls = "1 call" if number == 1 else f"{number} calls"
            cells.append(f"{calls}, {step.num_bytes:,} B" if number else "-")
            cells.append(f"{step.us:,.0f}")
        rows.append(cells)
    lines = markdown_table(head, rows, left=0, pad=True).splitlines()
    misfits = [f"{number:,}" for number in SIZES if number not in plan.growth]
    if misfits:
        lines.append(f"The layout does not fit on {', '.join(misfits)} GPUs.")
    return lines
