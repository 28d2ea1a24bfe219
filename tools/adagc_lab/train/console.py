# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run prints: lines while it trains, and how it ended."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from paddlenlp.trainer import TrainerCallback
from tqdm import tqdm

from adagc_lab.record.files import RunRecord
from adagc_lab.report.judged import judged_steps, memorises
from adagc_lab.train.processes import is_first_process
from adagc_lab.train.tasks import PretrainTask

_NUM_LAST = 10  # the last loss is the median of so many steps
_MEMORISED = " (of text that the run, which learns few sequences, never sees)"
_SHOWN = {
    "loss": "loss {:.4g}",
    "learning_rate": "lr {:.2g}",
    "clip_global_grad_norm": "|g| {:.3g}",
    "clip_clipped_fraction": "clipped {:.0%}",
    "clip_h_min": "h_min {:.2g}",
}
"""Numbers of a log, as far as they are known."""


class Console(TrainerCallback):
    """Print a line at the start and with every log, in the first process."""

    def __init__(self, task: PretrainTask, global_batch: int) -> None:
        self._task, self._global_batch = task, global_batch
        self._first_step, self._started = 0, 0.0

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        self._first_step, self._started = state.global_step, time.perf_counter()
        size = self._task.model_size()
        num, unit = self._samples(self._global_batch)
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
        rate, unit = self._samples(logs["interval_samples_per_second"])
        taken = time.perf_counter() - self._started
        steps = state.global_step - self._first_step
        left = taken / steps * (state.max_steps - state.global_step)
        parts = [
            text.format(logs[n]) for n, text in _SHOWN.items() if n in logs
        ]
        if logs.get("clip_nonfinite"):
            parts.append(f"nonfinite {logs['clip_nonfinite']}")
        parts.append(f"{rounded_rate(rate)} {unit.replace('tokens', 'tok')}/s")
        parts.append(f"ETA {tqdm.format_interval(left)}")
        _say("  ".join([_step(state), *parts]))

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any
    ) -> None:
        is_memorised = self._task.data.kind == "fixed_sequences"
        _say(
            f"{_step(state)}  validation loss {metrics['eval_loss']:.4g}"
            + _MEMORISED * is_memorised
        )

    def _samples(self, num_samples: float) -> tuple[Any, str]:
        """Return samples as tokens, where the task counts them; the unit."""
        if self._task.num_tokens is None:
            return num_samples, "pairs"
        return num_samples * self._task.num_tokens, "tokens"


def _say(line: str) -> None:
    if is_first_process():
        print(line, flush=True)


def rounded_rate(rate: float) -> str:
    """Three digits: ``"685"``, ``"1.00k"``."""
    # 999.5 is 1e+03 to "g".
    return tqdm.format_sizeof(rate) if rate >= 999.5 else f"{rate:.3g}"


def _step(state: Any) -> str:
    return f"step {state.global_step}/{state.max_steps}"


class RunSummary(NamedTuple):
    """How a run ended."""

    lines: list[str]
    is_sound: bool  # the last loss is finite and not above the first one


def summarise_run(directory: str | os.PathLike[str]) -> RunSummary:
    """Describe a run that has ended.

    Steps whose batch a fault corrupted do not count.
    """
    path, record = Path(directory), RunRecord.load(directory)
    loss = record.loss[judged_steps(record)]
    status = record.run["status"]
    seconds = tqdm.format_interval(record.run["wall_seconds"])
    lines = [f"{status}: {record.num_steps:,} steps in {seconds}"]
    problem = "no step to judge"
    if len(loss):
        # Median of the last losses, of the second half if they are few.
        last = float(np.median(loss[-max(1, min(_NUM_LAST, len(loss) // 2)) :]))
        problem = _problem(status, loss, last)
        lines.append(_losses(record, loss, last))
    if alarms := record.run.get("alarms"):
        counts = Counter(alarm["series"] for alarm in alarms).most_common()
        names = ", ".join(f"{name} {number}" for name, number in counts)
        lines.append(f"alarms: {names}; the first: {alarms[0]['text']}")
    lines += [f"problem: {problem}"] if problem else []
    lines += [f"files: {path}", f"next: adagc-report {path}"]
    return RunSummary(lines, not problem)


def _losses(record: RunRecord, loss: np.ndarray, last: float) -> str:
    text = f"loss: first {loss[0]:.4g}, last {last:.4g}"
    evaluated = record.metrics.get("eval_loss", np.zeros(0))
    evaluated = evaluated[~np.isnan(evaluated)]
    if len(evaluated):
        text += f"; validation: last {evaluated[-1]:.4g}"
        text += f", best {evaluated.min():.4g}" + _MEMORISED * memorises(record)
    return text


def _problem(status: str, loss: np.ndarray, last: float) -> str:
    """Say what is wrong with the losses; empty if nothing is."""
    remedy = "lower schedule.learning_rate, or clip harder"
    if status == "diverged" or not np.isfinite(loss[-1]):
        return f"the loss is not finite any more: {remedy}"
    if len(loss) > 1 and last > loss[0]:
        return f"the loss ended above its first value: {remedy}"
    return ""
