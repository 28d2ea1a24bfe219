# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numerical matrix: one bad step of a small training, and what follows.

A cell is a fault, the phase that it hits, and a clip. Every seed trains each
clip once without a fault, keeps weights, moments and clip state in memory at
each phase, and trains each fault from there on. Damage is the loss with the
fault minus the loss without, on the same batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.utils import unique_name

from paddle_adagc.lab.data.config import DataConfig
from paddle_adagc.lab.data.corpus import VOCAB_SIZE
from paddle_adagc.lab.data.datasets import build_datasets, collate_batch
from paddle_adagc.lab.extensions.robust import make_clip
from paddle_adagc.lab.faults import (
    REPEATED_BATCH,
    FaultSchedule,
    apply_to_batch,
    apply_to_gradients,
    repeated_samples,
)
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.soak.runs import Main, Trial
from paddle_adagc.lab.soak.step_faults import CONTROL, FAULTS, StepFault
from paddle_adagc.lab.train.config import ScheduleConfig
from paddle_adagc.lab.train.schedule import learning_rate
from paddle_adagc.stability.excess import paired_excess

NUM_STEPS = 600
T_START = 40
STEPS_AFTER = 300
"""Steps from the fault on, if the training does not end before."""

PHASES = {
    "first step": 0,
    "warm-up": 20,
    "last warm-up step": T_START - 1,
    "adaptive phase": 60,
    "decay": 450,
}
"""Step that is hit. The learning rate rises for 20 steps, and falls from step
420 on."""

CLIPS: dict[str, dict[str, Any]] = {
    "GlobalGC": {"name": "global_norm", "lambda_abs": 1.0},
    "AdaGC": {"name": "adagc", "t_start": T_START},
    "strict": {"name": "adagc", "t_start": T_START, "strict": True},
    "lambda_dev 1": {"name": "adagc", "t_start": T_START, "lambda_dev": 1.0},
    "robust": {"name": "adagc", "t_start": T_START, "preset": "robust"},
}
"""Columns of the table -> arguments of the clip."""

_SCHEDULE = ScheduleConfig(
    kind="wsd", learning_rate=4e-3, warmup_steps=20, decay_fraction=0.3
)
_BATCH_SIZE = 8
_LENGTH = 32


def cell_trials(
    folder: Path, main: Main, count: int, seed: int
) -> Iterator[Trial]:
    """Train cells: seed by seed, clip by clip, phase by phase.

    Args:
        folder: Not used.
        main: Not used.
        count: Number of cells. A seed has 480, and a control without a fault
            per phase and clip.
        seed: The first one, of the weights, the data and the faults.
    """
    return itertools.islice(_all_cells(seed), count)


def _all_cells(seed: int) -> Iterator[Trial]:
    for now in itertools.count(seed):
        for clip, arguments in CLIPS.items():
            training = Training(arguments, now)
            losses, starts = training.whole()
            for phase, step in PHASES.items():
                for fault in (*FAULTS, CONTROL):
                    training.restore(starts[step])
                    numbers = training.damage(fault, step, losses)
                    place = {"phase": phase, "clip": clip, "seed": now}
                    yield Trial(
                        "cells",
                        fault.name,
                        _outcome(numbers),
                        values={**place, **numbers},
                    )


def _outcome(numbers: dict[str, Any]) -> str:
    if numbers["area"] is None:
        return "not finite"
    return "worse" if numbers["recovery"] is None else "recovered"


class Training:
    """One layer, 18,120 weights, the standard library's bytes.

    Args:
        clip: Arguments of the clip.
        seed: Of the weights, the data and the faults.
    """

    def __init__(self, clip: dict[str, Any], seed: int) -> None:
        self._clip_arguments, self._seed = clip, seed
        paddle.seed(seed)
        self._model = DecoderForCausalLM(
            DecoderConfig(
                hidden_size=24,
                intermediate_size=48,
                num_hidden_layers=1,
                num_attention_heads=2,
            )
        )
        data = DataConfig(seq_length=_LENGTH, seed=seed, validation_size=1)
        self._data, _ = build_datasets(data, NUM_STEPS * _BATCH_SIZE)
        self._start()

    def whole(self) -> tuple[np.ndarray, dict[int, dict[str, Any]]]:
        """Train without a fault.

        Returns:
            Losses, float64 ``[NUM_STEPS]``; state before the step of each
            phase.
        """
        losses, states = np.empty(NUM_STEPS), {}
        schedule = FaultSchedule((), self._seed)
        for step in range(NUM_STEPS):
            if step in PHASES.values():
                states[step] = self._state()
            losses[step] = self._step(step, schedule, 1.0)
        return losses, states

    def damage(
        self, fault: StepFault, first: int, whole: np.ndarray
    ) -> dict[str, float | None]:
        """Train with a fault from the restored state on.

        Args:
            fault: What happens in the first step.
            first: That step.
            whole: Losses without a fault.

        Returns:
            ``area`` (sum of the excess loss, nat x steps), ``excess`` (its mean
            over the last 20 steps), ``recovery`` (steps until the excess of ten
            steps stays below 0.1 nat, None for never); None for what is not
            finite.
        """
        schedule = FaultSchedule(fault.config(first), self._seed)
        last = min(first + STEPS_AFTER, NUM_STEPS)
        losses = np.full(last - first, math.nan)
        for step in range(first, last):
            is_first = step == first
            rate = fault.learning_rate if is_first else 1.0
            losses[step - first] = self._step(step, schedule, rate)
            if is_first and fault.moment is not None:
                self._corrupt_moments(fault)
            if not np.isfinite(losses[max(step - first - 1, 0) :]).any():
                break
        hit = schedule.fault_steps(last) or [first]
        excess = paired_excess(
            losses,
            whole[first:last],
            [step - first for step in hit],
            exclude_steps=[
                step - first for step in schedule.corrupted_loss_steps(last)
            ],
        )
        return {
            "area": _finite(excess.area),
            "excess": _finite(excess.excess[-20:].mean()),
            "recovery": excess.steps_to_recover,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over weights, moments and clip state."""
        self._start()
        self._model.set_state_dict(state["weights"])
        if state["optimizer"]:
            self._optimizer.set_state_dict(state["optimizer"])
        if state["clip"]["step"]:
            self._clip.set_state_dict(state["clip"])

    def _start(self) -> None:
        self._clip: Any = make_clip(**self._clip_arguments)
        self._optimizer = paddle.optimizer.AdamW(
            learning_rate=_SCHEDULE.learning_rate,
            beta2=0.95,
            weight_decay=0.1,
            parameters=self._model.parameters(),
            grad_clip=self._clip,
        )

    def _state(self) -> dict[str, Any]:
        has_state = hasattr(self._clip, "state_dict")
        clip = self._clip.state_dict() if has_state else {"step": 0}
        state = {
            "weights": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "clip": clip,
        }
        return paddle.utils.map_structure(_copied, state)

    def _step(self, step: int, schedule: FaultSchedule, rate: float) -> float:
        tokens, labels = self._batch(step, schedule)
        loss, _ = self._model(tokens, labels)
        loss.backward()
        for fault in schedule.at(step):
            if fault.target == "gradient":
                apply_to_gradients(fault, self._model.named_parameters())
        now = learning_rate(_SCHEDULE, step, NUM_STEPS)
        self._optimizer.set_lr(rate * now)
        with unique_name.guard():  # the same moments' names after a restore
            self._optimizer.step()
        self._optimizer.clear_grad(set_to_zero=False)
        return float(loss)

    def _batch(
        self, step: int, schedule: FaultSchedule
    ) -> tuple[paddle.Tensor, paddle.Tensor]:
        faults = [f for f in schedule.at(step) if f.target == "batch"]
        samples = range(step * _BATCH_SIZE, (step + 1) * _BATCH_SIZE)
        for fault in faults:
            if fault.kind == REPEATED_BATCH:
                samples = repeated_samples(fault, _BATCH_SIZE)
        batch = collate_batch([self._data[sample] for sample in samples])
        arrays = batch["input_ids"], batch["labels"]
        for fault in faults:
            if fault.kind != REPEATED_BATCH:
                arrays = apply_to_batch(fault, *arrays, vocab_size=VOCAB_SIZE)
        return paddle.to_tensor(arrays[0]), paddle.to_tensor(arrays[1])

    def _corrupt_moments(self, fault: StepFault) -> None:
        for name, value in self._optimizer.state_dict().items():
            if f"_{fault.moment}_" in name:
                value.set_value(value * fault.magnitude)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, paddle.Tensor) else value


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
