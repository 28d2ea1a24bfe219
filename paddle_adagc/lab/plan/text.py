# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A plan as text and as JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from paddle_adagc.lab.benchmark.counts import Collective
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.plan.costs import StepCost
from paddle_adagc.lab.plan.plan import SIZES, Plan

_WIDTH = 96
_GIB = 2**30

_MEMORY_NOTE = """
Activations are those that the backward pass needs (Korthikanti et al. 2022;
the formula stands in paddle_adagc/lab/models/activations.py), of as many
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


def render(plan: Plan) -> str:
    """Return the plan as text."""
    blocks = [
        _section(f"Plan of {plan.name}", _run_lines(plan)),
        _section("Memory of a GPU (GiB)", _memory_lines(plan), _MEMORY_NOTE),
        _section("The clip's communication in a step", _clip_lines(plan)),
        _section("As the cluster grows", _growth_lines(plan), _CLIP_NOTE),
    ]
    return "\n\n".join(blocks)


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain dicts and lists; sizes are in bytes."""
    return {
        "config": plan.name,
        "num_gpus": plan.config.parallel.num_processes,
        "parallel": dataclasses.asdict(plan.config.parallel),
        "precision": plan.config.train.precision,
        "recompute": plan.recompute,
        "sequences_per_step": plan.config.global_batch,
        "interconnect": dataclasses.asdict(plan.interconnect),
        "model": {
            **dataclasses.asdict(plan.size),
            "gamma_bytes": plan.size.gamma_bytes,
        },
        "in_paddleformers": plan.of_formers and plan.of_formers._asdict(),
        "stages": [
            {
                **dataclasses.asdict(stage),
                "total_bytes": stage.memory.total,
            }
            for stage in plan.stages
        ],
        "clip": [_step_json(step) for step in plan.steps],
        "growth": [
            {"num_gpus": number, "clip": [_step_json(step) for step in steps]}
            for number, steps in plan.growth.items()
        ],
        "notes": [*plan.notes],
    }


def _step_json(step: StepCost) -> dict[str, Any]:
    keys = ("name", "group", "num_ranks", "num_bytes")
    return {
        "step": step.step,
        "rank": step.rank,
        "collectives": [
            dict(zip(keys, _facts(call), strict=True))
            for call in step.collectives
        ],
        "num_bytes": step.num_bytes,
        "us": step.us,
    }


def _section(title: str, lines: Sequence[str], note: str = "") -> str:
    parts = [title, "-" * len(title), *lines]
    if note:
        parts += ["", *textwrap.wrap(note.strip(), _WIDTH)]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return markdown_table(head, rows, left=0, pad=True).splitlines()


def _run_lines(plan: Plan) -> list[str]:
    parallel, size = plan.config.parallel, plan.size
    degrees = ("dp", "sharding", "tp", "pp", "ep")
    layout = ", ".join(f"{d} {getattr(parallel, d)}" for d in degrees)
    rows = {
        "GPUs": f"{parallel.num_processes:,} ({layout})",
        "sequences per step": f"{plan.config.global_batch:,} of "
        f"{plan.sample_length} tokens",
        "precision, optimizer": f"{plan.config.train.precision}, "
        f"{plan.config.optimizer.name}",
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
    most = max(stage.gamma_bytes for stage in plan.stages)
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
    rows = []
    for stage in plan.stages:
        memory = stage.memory
        sizes = [*dataclasses.astuple(memory), memory.total]
        rows.append(
            [str(stage.stage), f"{stage.tensors:,}"]
            + [f"{size / _GIB:.2f}" for size in sizes]
        )
    lines = _table(head, rows)
    if len(rows) > 1:
        lines.append(f"The largest is stage {plan.worst_stage.stage}.")
    return lines


def _clip_lines(plan: Plan) -> list[str]:
    lines = []
    width = max(len(step.step) for step in plan.steps)
    for step in plan.steps:
        calls = [
            f"{len([*same])} {name} of {size:,} B over {group} "
            f"({ranks:,} ranks)"
            for (name, group, ranks, size), same in groupby(
                map(_facts, step.collectives)
            )
        ]
        if calls:
            calls.append(f"{step.us:,.1f} us")
        name = step.step
        for call in calls or ["nothing"]:
            lines.append(f"{name.ljust(width)}  {call}")
            name = ""
    return lines


def _facts(call: Collective) -> tuple[str, str, int, int]:
    """Name, group, ranks, bytes; a group over several axes has no name."""
    unnamed = call.group.startswith("ranks ")
    group = "several axes" if unnamed else call.group
    return call.name, group, len(call.ranks), call.num_bytes


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
    lines = _table(head, rows)
    misfits = [f"{number:,}" for number in SIZES if number not in plan.growth]
    if misfits:
        lines.append(f"The layout does not fit on {', '.join(misfits)} GPUs.")
    return lines
