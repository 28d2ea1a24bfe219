# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check a recipe: one report of its plan, mistakes and needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.lab.extensions.robust import make_clip
from paddle_adagc.lab.faults import check_faults
from paddle_adagc.lab.paddleformers.recipe import batch_change
from paddle_adagc.lab.plan.check import machine, run_lines
from paddle_adagc.lab.plan.check.report import CheckReport
from paddle_adagc.lab.plan.dry_run import build_without_memory
from paddle_adagc.lab.train.architectures import make_task
from paddle_adagc.lab.train.config import RunConfig, TrainConfig
from paddle_adagc.lab.train.launching import launch_lines
from paddle_adagc.lab.train.schedule import unfinished_warm_up
from paddle_adagc.lab.train.task import PretrainTask


def check_recipe(
    config: RunConfig,
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    with_paddleformers: bool = False,
) -> CheckReport:
    """Build and shard the plan of a run on this machine, allocating nothing.

    Args:
        config: The run.
        recipe: The run's file, for the launch command and the batch without
            overrides.
        overrides: ``key=value`` that the file was read with.
        with_paddleformers: PaddleFormers trains it, not this package; it has
            rules of its own for evaluation and for pipeline stages.

    Returns:
        The plan, the recipe's mistakes, and what this machine lacks.
    """
    report = CheckReport(recipe)
    report.missing += machine.missing_devices(config)
    report.missing += machine.missing_paths(config)
    if with_paddleformers:
        report.missing += machine.missing_for_paddleformers(config)
    else:
        report.attempt(lambda: run_lines.check_validation(config))
    task = report.attempt(lambda: make_task(config))
    if task is not None:
        _add_task(report, task, with_paddleformers)
    if (
        task is not None
        and config.faults
        and config.parallel.num_processes == 1
    ):
        report.attempt(
            lambda: check_faults(
                config.faults,
                build_without_memory(config),
                task.num_words,
            )
        )
    _add_batches(report, config, batch_change(config, recipe))
    lines = run_lines.optimizer_lines(config)
    clip = report.attempt(lambda: make_clip(**config.clip))
    if isinstance(clip, ClipGradByAdaGC):
        # PaddleFormers' model has names of its own.
        keys = task.tensor_keys() if task and not with_paddleformers else None
        lines += (
            report.attempt(
                lambda: run_lines.override_lines(clip.overrides, keys)
            )
            or []
        )
    report.add("Optimizer and clip", lines)
    num_processes = config.parallel.num_processes
    run = ["tools/pretrain.py", recipe, *overrides]
    report.add("Launch", launch_lines(run, num_processes))
    return report


def check_values(
    recipe: str, values: Mapping[str, Any], error: ValueError
) -> CheckReport:
    """Name all mistakes of a recipe whose values do not make a run.

    Args:
        recipe: The recipe's file.
        values: Its values, with overrides.
        error: The refusal; sections that it is not about have their own.
    """
    report = CheckReport(recipe, mistakes=str(error).splitlines())
    clip, model = (values.get(key) for key in ("clip", "model"))
    if isinstance(clip, Mapping):
        report.attempt(lambda: make_clip(**clip))
    if isinstance(model, Mapping):
        report.attempt(lambda: make_task(_run_of(model)))
    return report


def _run_of(model: Mapping[str, Any]) -> RunConfig:
    """Make a run of nothing but this model."""
    train = TrainConfig(output_dir="unused", max_steps=1)
    return RunConfig(model=dict(model), clip={"name": "none"}, train=train)


def _add_task(
    report: CheckReport, task: PretrainTask, with_paddleformers: bool
) -> None:
    parallel = task.config.parallel
    report.add("Model", task.model_lines())
    num_mistakes = len(report.mistakes)
    report.attempt(task.check_layout)
    if len(report.mistakes) == num_mistakes:
        lines = run_lines.layout_lines(parallel)
        lines += run_lines.shard_lines(task.shard_sizes())
        if with_paddleformers and parallel.pp > 1:
            lines.append(
                "(by this package's stages; PaddleFormers cuts its own)"
            )
        report.add("Layout", lines)
    data = report.attempt(task.inspect_data)
    if data is not None:
        report.add("Data", data.lines)
        report.missing += data.missing


def _add_batches(
    report: CheckReport, config: RunConfig, change: str | None
) -> None:
    first, *rest = run_lines.batch_lines(config)
    report.add("Batches", [first, *([change] if change else []), *rest])
    lines = run_lines.schedule_lines(config)
    for name, steps in (
        ("schedule.warmup_steps", config.schedule.warmup_steps),
        ("clip.t_start", config.clip.get("t_start", 0)),
    ):
        lines += unfinished_warm_up(name, steps, config.train.max_steps)
    report.add("Schedule", lines)
