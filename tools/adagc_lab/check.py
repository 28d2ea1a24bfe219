# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check a recipe before it costs anything: plan, mistakes, what is missing."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import paddle

from adagc_lab.clips import ComparedClip, make_clip
from adagc_lab.clips.compared import refuse_layout
from adagc_lab.data.config import TEXT_KINDS
from adagc_lab.faults import check_faults, unreached_faults
from adagc_lab.paddleformers.units import followed
from adagc_lab.storage import check_directory
from adagc_lab.train.config import ParallelConfig, RunConfig
from adagc_lab.train.optimizers import (
    check_precision,
    learning_rate,
    unfinished_warm_up,
    uses_amp,
)
from adagc_lab.train.processes import launch_lines, refuse_untrained
from adagc_lab.train.tasks import PretrainTask, make_task
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.overrides import Overrides

T = TypeVar("T")


@dataclasses.dataclass
class CheckReport:
    """Findings about one recipe."""

    recipe: str  # its file
    sections: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """Headings with the lines below each."""

    mistakes: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    """What this machine lacks for the run; mistakes are so on any machine."""

    @property
    def exit_status(self) -> int:
        """0: the recipe is sound, whatever is missing here; 2: it is not."""
        return 2 if self.mistakes else 0

    def attempt(self, function: Callable[[], T]) -> T | None:
        """Call a function; record its refusal as a mistake and return None."""
        try:
            return function()
        except (ValueError, TypeError) as error:
            new = str(error).splitlines()
            self.mistakes += [line for line in new if line not in self.mistakes]
            return None

    def text(self) -> str:
        verdict = "has mistakes" if self.mistakes else "is sound"
        parts = [f"{self.recipe} {verdict}"]
        sections = {
            "Mistakes": [f"- {line}" for line in self.mistakes],
            **self.sections,
            "Missing here": [f"- {line}" for line in self.missing],
        }
        for title, lines in sections.items():
            if lines:
                parts += ["", title, *(f"  {line}" for line in lines)]
        if self.sections and not self.mistakes and not self.missing:
            parts += ["", "Nothing is missing here."]
        return "\n".join(parts)


def check_recipe(
    config: RunConfig,
    recipe: str,
    overrides: Sequence[str] = (),
    options: Sequence[str] = (),
    *,
    with_paddleformers: bool = False,
) -> CheckReport:
    """Build and shard the plan of a run on this machine, allocating nothing.

    ``recipe`` is the run's file, read with ``overrides``; ``options`` of the
    command are those that start the run. PaddleFormers has rules of its own for
    pipeline stages.
    """
    report = CheckReport(recipe, missing=_missing(config, with_paddleformers))
    if not with_paddleformers:
        report.attempt(lambda: refuse_untrained(config.parallel))
    task = report.attempt(lambda: make_task(config))
    if task is not None:
        _add_task(report, task, config.num_train_samples, with_paddleformers)
        shapes = task.tensor_shapes()
        found = report.attempt(lambda: followed(recipe, overrides, shapes))
        if found is not None:
            report.sections["Model"].append(f"in PaddleFormers {found}")
        if config.faults and config.parallel.num_processes == 1:
            with paddle.LazyGuard():  # without the memory of its weights
                model = task.build_model()
            report.attempt(lambda: check_faults(config.faults, model))
    report.sections["Batches"] = _batch_lines(config)
    clip = report.attempt(lambda: make_clip(**config.clip))
    if isinstance(clip, ComparedClip):
        report.attempt(
            lambda: refuse_layout(type(clip).__name__, config.parallel)
        )
    if clip is not None:
        t_start = getattr(clip, "t_start", 0)
        report.sections["Schedule"] = _schedule_lines(config, t_start)
    report.sections["Optimizer and clip"] = lines = _optimizer_lines(config)
    if isinstance(clip, ClipGradByAdaGC):
        # PaddleFormers' model has names of its own.
        keys = (
            [*task.tensor_shapes()] if task and not with_paddleformers else None
        )
        patterns = report.attempt(lambda: _override_lines(clip.overrides, keys))
        lines += patterns or []
    run = ["tools/pretrain.py", recipe, *overrides, *options]
    report.sections["Launch"] = [
        *launch_lines(run, config.parallel.num_processes)
    ]
    return report


def _missing(config: RunConfig, with_paddleformers: bool) -> list[str]:
    needed = config.parallel.num_processes
    found = paddle.device.cuda.device_count()
    missing = []
    if found < needed and (needed > 1 or uses_amp(config.train)):
        missing.append(f"GPUs: {needed} for {needed} processes, {found} here")
    try:
        check_precision(config.train)
    except ValueError as error:
        missing.append(str(error))
    try:
        check_directory("train.output_dir", config.train.output_dir)
    except (FileNotFoundError, PermissionError, ValueError) as error:
        missing.append(str(error))
    if not with_paddleformers:
        return missing
    if importlib.util.find_spec("paddleformers") is None:
        missing.append(
            "PaddleFormers: pip install -e '.[formers]', without '[nlp]'"
        )
    if not paddle.device.is_compiled_with_cuda():
        missing.append(
            f"train.precision={config.train.precision}: PaddleFormers' kernels "
            "need a GPU build of Paddle"
        )
    return missing


def _add_task(
    report: CheckReport,
    task: PretrainTask,
    num_samples: int,
    with_paddleformers: bool,
) -> None:
    parallel = task.parallel
    size = task.model_size()
    report.sections["Model"] = [
        f"{size.parameters:,} parameters in {size.tensors:,} tensors, "
        f"{size.active_parameters:,} active per token"
    ]
    num_mistakes = len(report.mistakes)
    report.attempt(task.check_layout)
    if len(report.mistakes) == num_mistakes:
        report.sections["Layout"] = lines = _layout_lines(parallel)
        if with_paddleformers and parallel.pp > 1:
            lines.append(
                "(by this package's stages; PaddleFormers cuts its own)"
            )
    data = report.attempt(lambda: task.inspect_data(num_samples))
    if data is not None:
        report.sections["Data"] = [*data.lines]
        report.missing += data.missing


def _layout_lines(parallel: ParallelConfig) -> list[str]:
    degrees = f"DP {parallel.dp} x sharding {parallel.sharding}"
    if parallel.sharding > 1:
        degrees += f" (V{1 + parallel.sharding_split_param})"
    degrees += f" x TP {parallel.tp} x PP {parallel.pp}"
    lines = [f"{parallel.num_processes} processes = {degrees}"]
    if parallel.ep > 1:
        lines.append(f"EP {parallel.ep}: inside of the sharding and TP ranks")
    return lines


def _batch_lines(config: RunConfig) -> list[str]:
    train, parallel = config.train, config.parallel
    is_text, samples = config.data.kind in TEXT_KINDS, config.global_batch
    unit = "sequences" if is_text else "pairs"
    lines = [
        f"{samples:,} {unit} a step = {train.batch_size} a device x "
        f"{train.gradient_accumulation_steps} accumulated x "
        f"{parallel.num_data_ranks} data-parallel ranks"
    ]
    if not is_text:
        total = config.num_train_samples
        return [*lines, f"{train.max_steps:,} steps: {total:,} {unit}"]
    tokens = samples * config.data.seq_length
    return [
        *lines,
        f"{tokens:,} tokens a step (sequences of {config.data.seq_length:,})",
        f"{train.max_steps:,} steps: {train.max_steps * tokens:,} tokens",
    ]


def _schedule_lines(config: RunConfig, t_start: int) -> list[str]:
    """Give the learning rate at the steps where its course changes."""
    schedule, num_steps = config.schedule, config.train.max_steps
    last = num_steps - 1
    marks = {0, min(max(schedule.warmup_steps - 1, 0), last), last // 2, last}
    rates = ", ".join(
        f"{learning_rate(schedule, step, num_steps):.3g} at {step:,}"
        for step in sorted(marks)
    )
    warmup = f"{schedule.warmup_steps:,} warm-up steps"
    return [
        f"{schedule.kind}, {warmup}; rate {rates}",
        *unfinished_warm_up(
            "schedule.warmup_steps", schedule.warmup_steps, num_steps
        ),
        *unfinished_warm_up("clip.t_start", t_start, num_steps),
        *unreached_faults(config.faults, num_steps),
    ]


def _optimizer_lines(config: RunConfig) -> list[str]:
    clip = {k: v for k, v in config.clip.items() if k != "overrides"}
    lines = []
    for settings in (config.optimizer.model_dump(), clip):
        name = settings.pop("name", None)
        lines.append(f"{name}: {_arguments(settings) or 'defaults'}")
    clips_itself = config.optimizer.name not in ("adamw", "lion", "muon")
    if clips_itself and config.clip.get("name") != "none":
        lines.append(
            f"{config.optimizer.name} clips by itself, after the clip: "
            "clip.name=none leaves it alone"
        )
    return [*lines, f"precision {config.train.precision}"]


def _override_lines(
    overrides: Overrides, keys: Sequence[str] | None
) -> list[str]:
    if keys is not None:
        overrides.refuse_unused(keys)
    counts = overrides.num_tensors(keys or ())
    return [
        f"clip {pattern} (tensors: {counts[pattern] if keys else 'unknown'}): "
        f"{'not clipped' if values is None else _arguments(values)}"
        for pattern, values in overrides.by_pattern.items()
    ]


def _arguments(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())
