# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run prints while it trains: plain lines, and on a terminal a bar."""

from __future__ import annotations

import sys
import time
from typing import Any

from paddlenlp.trainer import TrainerCallback
from tqdm import tqdm

from paddle_adagc.lab.train.processes import is_first_process
from paddle_adagc.lab.train.task import PretrainTask


class Console(TrainerCallback):
    """Print a line at the start and with every log; the first process does.

    Args:
        task: What is trained.
    """

    def __init__(self, task: PretrainTask) -> None:
        self._task = task
        self._bar: tqdm | None = None
        self._first_step, self._started = 0, 0.0

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Print the run's size, and the step that it resumes at."""
        if not is_first_process():
            return
        size, config = self._task.model_size(), self._task.config
        num, unit = _samples_in(self._task, config.global_batch)
        self._say(
            f"{size.parameters:,} parameters in {size.tensors:,} tensors, "
            f"{num:,} {unit} per step, {state.max_steps:,} steps"
        )
        if state.global_step:
            self._say(f"resumed at step {state.global_step:,}")
        self._first_step, self._started = state.global_step, time.perf_counter()
        if sys.stdout.isatty():
            self._bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                unit="step",
                file=sys.stdout,
            )

    def on_step_end(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Print the numbers of a training log."""
        if "loss" not in logs or not is_first_process():
            return
        samples = logs["interval_samples_per_second"]
        rate, unit = _samples_in(self._task, samples)
        unit = unit.replace("tokens", "tok")
        taken = time.perf_counter() - self._started
        steps = state.global_step - self._first_step
        left = taken / steps * (state.max_steps - state.global_step)
        self._say(
            f"{_step(state)}  {describe_log(logs)}  {_amount(rate)} {unit}/s  "
            f"ETA {tqdm.format_interval(left)}"
        )

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        """Print the validation loss."""
        if is_first_process():
            self._say(
                f"{_step(state)}  validation loss {metrics['eval_loss']:.4g}"
            )

    def on_train_end(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _say(self, line: str) -> None:
        if self._bar is None:
            print(line, flush=True)
        else:
            self._bar.write(line, file=sys.stdout)


def describe_log(logs: dict[str, Any]) -> str:
    """Describe loss, learning rate and what the clip did.

    Args:
        logs: From the Trainer, with the clip's ``clip_...`` keys if it gives
            any.
    """
    parts = [f"loss {logs['loss']:.4g}", f"lr {logs['learning_rate']:.2g}"]
    if "clip_h_min" in logs:
        lowest = [key for key in logs if key.startswith("clip_h/")]
        name = f" ({short_name(lowest[0])})" if lowest else ""
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
    key = key.removeprefix("clip_h/").removeprefix("model.")
    return key.removesuffix(".weight")


def _step(state: Any) -> str:
    return f"step {state.global_step}/{state.max_steps}"


def _amount(value: float) -> str:
    return tqdm.format_sizeof(value) if value >= 1000 else f"{value:.3g}"


def _samples_in(task: PretrainTask, num_samples: float) -> tuple[Any, str]:
    """Return samples as tokens, where the task counts them, and the unit."""
    if task.num_tokens is None:
        return num_samples, task.config.sample_name
    return num_samples * task.num_tokens, "tokens"
