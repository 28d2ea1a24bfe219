# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run prints: lines while it trains, and how it ended."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from paddlenlp.trainer import TrainerCallback
from tqdm import tqdm

from adagc_lab.record.files import RunRecord
from adagc_lab.train.processes import is_first_process
from adagc_lab.train.tasks import PretrainTask
from paddle_adagc.spikes import spike_score

if TYPE_CHECKING:
    from adagc_lab.train.recorder import StepRecorder

_NUM_LAST = 10  # the last loss is the median of so many steps
_MEMORISED = " (of text that the run, which learns few sequences, never sees)"


class Console(TrainerCallback):
    """Print a line at the start and with every log, in the first process."""

    def __init__(
        self, task: PretrainTask, global_batch: int, recorder: StepRecorder
    ) -> None:
        self._task, self._global_batch = task, global_batch
        self._recorder = recorder
        self._first_step, self._started = 0, 0.0

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        self._first_step, self._started = state.global_step, time.perf_counter()
        size = self._task.model_size()
        num, unit = _samples_in(self._task, self._global_batch)
        _say(
            f"{size.parameters:,} parameters in {size.tensors:,} tensors, "
            f"{num:,} {unit} per step, {state.max_steps:,} steps"
        )
        if state.global_step:
            _say(f"resumed at step {state.global_step:,}")

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any
    ) -> None:
        if "loss" not in logs:
            return
        samples = logs["interval_samples_per_second"]
        rate, unit = _samples_in(self._task, samples)
        unit = unit.replace("tokens", "tok")
        taken = time.perf_counter() - self._started
        steps = state.global_step - self._first_step
        left = taken / steps * (state.max_steps - state.global_step)
        described = describe_log(logs, self._recorder.most_clipped)
        _say(
            f"{_step(state)}  {described}  {rounded_rate(rate)} {unit}/s  "
            f"ETA {tqdm.format_interval(left)}"
        )

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any
    ) -> None:
        is_memorised = self._task.data.kind == "fixed_sequences"
        _say(
            f"{_step(state)}  validation loss {metrics['eval_loss']:.4g}"
            + _MEMORISED * is_memorised
        )


def _say(line: str) -> None:
    if is_first_process():
        print(line, flush=True)


def rounded_rate(rate: float) -> str:
    """Three digits: ``"685"``, ``"1.00k"``."""
    # 999.5 is 1e+03 to "g".
    return tqdm.format_sizeof(rate) if rate >= 999.5 else f"{rate:.3g}"


def describe_log(
    logs: dict[str, Any], most_clipped: Mapping[str, float]
) -> str:
    """Describe loss, learning rate and, if it is known, what the clip did."""
    parts = [f"loss {logs['loss']:.4g}", f"lr {logs['learning_rate']:.2g}"]
    if "clip_h_min" in logs:
        lowest = [short_name(key) for key in most_clipped][:1]
        name = f" ({lowest[0]})" if lowest else ""
        parts += [
            f"|g| {logs['clip_global_grad_norm']:.3g}",
            f"clipped {logs['clip_clipped_fraction']:.0%}",
            f"h_min {logs['clip_h_min']:.2g}{name}",
        ]
        if logs["clip_nonfinite"]:
            parts.append(f"nonfinite {logs['clip_nonfinite']}")
    return "  ".join(parts)


def short_name(key: str) -> str:
    """Leave out of a tensor's name what most names share."""
    return key.removeprefix("model.").removesuffix(".weight")


def _step(state: Any) -> str:
    return f"step {state.global_step}/{state.max_steps}"


def _samples_in(task: PretrainTask, num_samples: float) -> tuple[Any, str]:
    """Return samples as tokens, where the task counts them, and the unit."""
    if task.num_tokens is None:
        return num_samples, "pairs"
    return num_samples * task.num_tokens, "tokens"


class RunSummary(NamedTuple):
    """How a run ended."""

    lines: list[str]
    is_sound: bool  # the last loss is finite and not above the first one


def summarise_run(directory: str | os.PathLike[str]) -> RunSummary:
    """Describe a run that has ended.

    Steps whose batch a fault corrupted do not count.
    """
    path, record = Path(directory), RunRecord.load(directory)
    steps = record.clean_steps
    loss = record.loss[steps]
    seconds = tqdm.format_interval(record.run["wall_seconds"])
    lines = [f"{record.run['status']}: {record.num_steps:,} steps in {seconds}"]
    problem = "no step to judge"
    if len(loss):
        # Median of the last losses, of the second half if they are few.
        last = float(np.median(loss[-max(1, min(_NUM_LAST, len(loss) // 2)) :]))
        problem = _problem(record.run["status"], loss, last)
        lines += [_losses(record, loss, last), _spikes(record, steps)]
    if alarms := record.run.get("alarms"):
        counts = Counter(alarm["series"] for alarm in alarms).most_common()
        lines.append(
            f"alarms: {', '.join(f'{name} {n}' for name, n in counts)}; the "
            f"first: {alarms[0]['text']}; --fork NEW_DIR --at STEP starts a "
            "new run from a checkpoint before it"
        )
    lines += [f"files: {path}", f"next: python tools/report.py {path}"]
    return RunSummary([*lines, problem] if problem else lines, not problem)


def _losses(record: RunRecord, loss: np.ndarray, last: float) -> str:
    text = f"loss: first {loss[0]:.4g}, last {last:.4g}"
    if np.isfinite(loss).any():
        text += f", best {loss[np.isfinite(loss)].min():.4g}"
    evaluated = record.metrics.get("eval_loss", np.zeros(0))
    evaluated = evaluated[~np.isnan(evaluated)]
    if len(evaluated):
        text += f"; validation: last {evaluated[-1]:.4g}"
        text += f", best {evaluated.min():.4g}"
        kind = record.run["config"]["data"]["kind"]
        text += _MEMORISED * (kind == "fixed_sequences")
    return text


def _problem(status: str, loss: np.ndarray, last: float) -> str:
    """Say what is wrong with the losses; empty if nothing is."""
    remedy = "lower schedule.learning_rate, or clip harder"
    if status == "diverged" or not np.isfinite(loss[-1]):
        return (
            f"the loss is not finite any more: {remedy}; --fork starts from a "
            "checkpoint before, if train.save_every made one"
        )
    if len(loss) > 1 and last > loss[0]:
        return (
            f"the loss ended at {last:.4g}, above its first value "
            f"{loss[0]:.4g}: {remedy}"
        )
    return ""


def _spikes(record: RunRecord, steps: np.ndarray) -> str:
    window = 1000 if len(steps) > 1000 else 200  # the paper's, if it fits
    score = spike_score(record.loss[steps], window)
    num_judged = score.num_values - score.num_unjudged
    text = f"spikes: {score.num_spikes} in {num_judged:,} judged steps"
    text += f" (a step is judged by the {window:,} steps before it)"
    if left_out := record.num_steps - len(steps):
        text += f"; {left_out} steps with a corrupted batch are not judged"
    if score.num_spikes:
        text += f", the first at step {steps[score.indices[0]]:,}"
    return text
