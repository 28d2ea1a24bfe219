# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Put one bad step into a small training, and see what follows.

    python tools/soak_cells.py

A cell is a fault, the phase that it hits, and a clip. Every seed trains each
clip once without a fault, and then each fault from each phase on. Damage is the
loss with the fault minus the loss without, on the same batches. The cells go to
results/soak.jsonl; docs/soak.md shows their medians.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.utils import unique_name

from paddle_adagc.files import atomic_write
from paddle_adagc.lab import faults
from paddle_adagc.lab.data.config import DataConfig
from paddle_adagc.lab.data.datasets import build_datasets, collate_batch
from paddle_adagc.lab.extensions import make_clip
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.train.config import ScheduleConfig
from paddle_adagc.lab.train.optimizers import learning_rate
from paddle_adagc.stability.excess import paired_excess

RESULTS = Path(__file__).resolve().parents[1] / "results/soak.jsonl"
Json = dict[str, Any]

NUM_STEPS = 600
STEPS_AFTER = 300  # from the fault on, if the training does not end before

PHASES = {
    "first step": 0,
    "warm-up": 20,
    "last warm-up step": 39,
    "adaptive phase": 60,
    "decay": 450,
}
"""Step that is hit. The learning rate rises until 20 and falls from 420 on."""

_ADAGC = {"name": "adagc", "t_start": 40}
CLIPS: dict[str, Json] = {
    "GlobalGC": {"name": "global_norm", "lambda_abs": 1.0},
    "AdaGC": _ADAGC,
    "strict": {**_ADAGC, "strict": True},
    "lambda_dev 1": {**_ADAGC, "lambda_dev": 1.0},
    "robust": {**_ADAGC, "preset": "robust"},
}
"""Columns of the table -> arguments of the clip."""


def _times(kind: str, magnitude: float) -> Json:
    return {"kind": kind, "magnitude": magnitude}


_ALL = {"tensor": "*"}
FAULTS: dict[str, Json] = {
    f"{name}: {label}": {**fault, **tensor}
    for label, fault in {
        "x 1e6": _times("gradient_scale", 1e6),
        "x 1e3": _times("gradient_scale", 1e3),
        "x 1e-3": _times("gradient_scale", 1e-3),
        "x 1e-6": _times("gradient_scale", 1e-6),
        "other sign": _times("gradient_scale", -1.0),
        "zero": _times("gradient_scale", 0.0),
        "NaN in one element": {"kind": "gradient_nan"},
        "Inf in one element": {"kind": "gradient_inf"},
    }.items()
    for name, tensor in (("all gradients", _ALL), ("one gradient", {}))
}
_FLIPPED = "one gradient: highest exponent bit of one element flipped"
CONTROL = "no fault (gradients x 1.000001)"
FAULTS |= {
    _FLIPPED: {"kind": "gradient_bit_flip", "exponent_bit": 7},
    "batch: random tokens": {"kind": "random_tokens"},
    "batch: shuffled labels": {"kind": "shuffled_labels"},
    "batch: 8 steps of the same one": {"kind": "repeated_batch", "duration": 8},
    "learning rate x 10": _times("learning_rate", 10.0),
    "learning rate x 100": _times("learning_rate", 100.0),
    "first moments x 1e3": _times("moment1", 1e3),
    "second moments x 1e-6": _times("moment2", 1e-6),
    CONTROL: {**_times("gradient_scale", 1.000001), **_ALL},
}
"""Arguments of ``FaultConfig`` by name, or our own kinds: a factor of the
step's learning rate, or of a moment after the step. The control shows rounding
errors, as far as they grow."""

_MODEL = DecoderConfig(
    hidden_size=24,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=2,
)
_SCHEDULE = ScheduleConfig(
    kind="wsd", learning_rate=4e-3, warmup_steps=20, decay_fraction=0.3
)
_BATCH_SIZE = 8


class Training:
    """One layer, 18,120 weights, the standard library's bytes."""

    def __init__(self, clip: Json, seed: int) -> None:
        """Train without a fault, and keep the state at every phase."""
        self._clip_arguments, self._seed = clip, seed
        paddle.seed(seed)
        self._model = DecoderForCausalLM(_MODEL)
        data = DataConfig(seq_length=32, seed=seed, validation_size=1)
        self._data, _ = build_datasets(data, NUM_STEPS * _BATCH_SIZE)
        self._begin()
        self._losses, self._states = np.empty(NUM_STEPS), {}
        for step in range(NUM_STEPS):
            if step in PHASES.values():
                states = [part.state_dict() for part in self._parts]
                self._states[step] = paddle.utils.map_structure(_copied, states)
            self._losses[step] = self._step(step)

    def damage(self, fault: Json, first: int) -> Json:
        """Train from a phase on, with a fault in its step ``first``.

        Gives ``area`` (sum of the excess loss, nat x steps), ``excess`` (its
        mean over the last 20 steps; both None if not finite), ``recovery``
        (steps until its mean over ten stays below 0.1 nat; None: never).
        """
        own, configs = fault, []
        if fault["kind"] not in ("learning_rate", "moment1", "moment2"):
            own, configs = {}, [faults.FaultConfig(steps=(first,), **fault)]
        schedule = faults.FaultSchedule(configs, self._seed)
        last = min(first + STEPS_AFTER, NUM_STEPS)
        losses = np.full(last - first, np.nan)
        self._begin()
        for part, state in zip(self._parts, self._states[first], strict=True):
            part.set_state_dict(state)
        for i, step in enumerate(range(first, last)):
            hit = next(iter(schedule.at(step)), None)
            losses[i] = self._step(step, hit, **({} if i else own))
            if not np.isfinite(losses[max(i - 1, 0) :]).any():
                break
        corrupted = schedule.corrupted_loss_steps(last)
        excess = paired_excess(
            losses,
            self._losses[first:last],
            [step - first for step in schedule.fault_steps(last) or [first]],
            exclude_steps=[step - first for step in corrupted],
        )
        measures = {"area": excess.area, "excess": excess.excess[-20:].mean()}
        found: Json = {}
        for name, value in measures.items():
            found[name] = float(f"{value:.6g}") if np.isfinite(value) else None
        return {**found, "recovery": excess.steps_to_recover}

    def _begin(self) -> None:
        self._clip = make_clip(**self._clip_arguments)
        self._optimizer = paddle.optimizer.AdamW(
            beta2=0.95,
            weight_decay=0.1,
            parameters=self._model.parameters(),
            grad_clip=self._clip,
        )
        parts = (self._model, self._optimizer, self._clip)
        self._parts = [part for part in parts if hasattr(part, "state_dict")]

    def _step(
        self, step: int, hit: Any = None, kind: str = "", magnitude: float = 1
    ) -> float:
        """Train a step; ``hit`` is a fault of a schedule, ``kind`` our own."""
        samples = range(step * _BATCH_SIZE, (step + 1) * _BATCH_SIZE)
        if hit and hit.kind == faults.REPEATED_BATCH:
            samples = faults.repeated_samples(hit, _BATCH_SIZE)
        batch = collate_batch([self._data[sample] for sample in samples])
        arrays = batch["input_ids"], batch["labels"]
        if hit and hit.target == "batch" and hit.kind != faults.REPEATED_BATCH:
            size = _MODEL.vocab_size
            arrays = faults.apply_to_batch(hit, *arrays, vocab_size=size)
        loss, _ = self._model(*map(paddle.to_tensor, arrays))
        loss.backward()
        if hit and hit.target == "gradient":
            faults.apply_to_gradients(hit, self._model.named_parameters())
        rate = learning_rate(_SCHEDULE, step, NUM_STEPS)
        is_rate = kind == "learning_rate"
        self._optimizer.set_lr(magnitude * rate if is_rate else rate)
        with unique_name.guard():  # the same moments' names after a restore
            self._optimizer.step()
        self._optimizer.clear_grad(set_to_zero=False)
        moments = self._optimizer.state_dict() if kind else {}
        for name, value in moments.items():
            if f"_{kind}_" in name:
                value.set_value(value * magnitude)
        return float(loss)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, paddle.Tensor) else value


def train_cells(seed: int) -> Iterator[Json]:
    """Train a seed's cells: clip by clip, phase by phase."""
    for clip, arguments in CLIPS.items():
        training = Training(arguments, seed)
        for phase, case in itertools.product(PHASES, FAULTS):
            found = training.damage(FAULTS[case], PHASES[phase])
            outcome = "worse" if found["recovery"] is None else "recovered"
            if found["area"] is None:
                outcome = "not finite"
            values = {"phase": phase, "clip": clip, "seed": seed, **found}
            cell = {"kind": "cells", "case": case, "outcome": outcome}
            yield {**cell, "values": values}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seeds", type=int, nargs="*", help="default: 0 1 2")
    seeds = parser.parse_args().seeds or (0, 1, 2)
    lines = [json.loads(x) for x in RESULTS.read_text("utf-8").splitlines()]
    lines = [line for line in lines if line["kind"] != "cells"]
    for seed in seeds:
        lines += train_cells(seed)
    atomic_write(RESULTS, "".join(f"{json.dumps(line)}\n" for line in lines))


if __name__ == "__main__":
    main()
