# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A real network, trained with NumPy in seconds, and its record.

A small classifier learns from a teacher with Adam, GlobalGC and AdaGC's shadow.
Its numbers are judged and written by the library.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.watch import read_record
from paddle_adagc.watch.measure import Steps, add_numbers
from paddle_adagc.watch.replay import Settings, replay
from paddle_adagc.watch.store import FILE, MAX_BYTES
from paddle_adagc.watch.writer import Writer

NUM_LAYERS, CLASSES = 4, 10
KEYS = [
    f"layers.{i}.fc.{name}"
    for i in range(NUM_LAYERS)
    for name in ("weight", "bias")
]
ADAGC, SHADOW = Settings(t_start=0), Settings(init="warmup_ema")
SHADOW_TEXT = "ClipGradByAdaGC(lambda_abs=1.0, t_start=100, init='warmup_ema')"
FINISHED = {"kind": "finished"}


@dataclasses.dataclass
class Training:
    """A run; the functions get the step, 1 for the first."""

    seed: dataclasses.InitVar[int] = 1
    width: dataclasses.InitVar[int] = 24
    batch: dataclasses.InitVar[int] = 128
    beta2: dataclasses.InitVar[float] = 0.99
    adagc: bool = False
    rate: Callable[[int], float] = lambda step: 0.002
    data: Callable[[int], str] = lambda step: ""
    gradients: Callable[[int, list[np.ndarray]], None] = lambda step, g: None

    def __post_init__(
        self, seed: int, width: int, batch: int, beta2: float
    ) -> None:
        random = np.random.default_rng(seed)
        self.batches = Batches(random, width, batch)
        self.adam = Adam(make_net(random, width, 1.0), beta2)
        self.gamma: np.ndarray | None = None

    def run(self, last: int) -> list[dict[str, Any]]:
        """Make the steps up to this one."""
        return [self._step(step) for step in range(1, last + 1)]

    def _step(self, step: int) -> dict[str, Any]:
        """Make a step; return its numbers, and the norms of the tensors."""
        rate = self.rate(step)
        with np.errstate(all="ignore"):
            x, y = self.batches.draw(self.data(step))
            loss, gradients = gradients_of(self.adam.net, x, y)
            self.gradients(step, gradients)
            norms = np.array([np.sqrt((g**2).sum()) for g in gradients])
            norms = np.where(np.isfinite(norms), norms, np.inf)
            h = self._factors(norms)
            clipped = [
                a * np.where(a, g, 0) for a, g in zip(h, gradients, strict=True)
            ]
            self.adam.update(clipped, rate)
        row = {"step": step, "loss": loss, "learning_rate": rate}
        return {**row, "step_seconds": 0.5, "norms": norms}

    def _factors(self, norms: np.ndarray) -> np.ndarray:
        """Return what each gradient is multiplied by."""
        if not self.adagc:
            return by_global_norm(norms[None], KEYS)[0]
        found = replay(norms[None], ADAGC, self.gamma)
        self.gamma = found.gamma[0]
        return found.h[0].astype(float)

    def recorded(self, rows: list[dict[str, Any]]) -> Steps:
        """Return the numbers that a record has of these rows."""
        norms = np.stack([row.pop("norms") for row in rows]).astype("f4")
        found = replay(norms, ADAGC if self.adagc else SHADOW)
        tensors = {"norm": norms, "gamma": found.gamma, "h": found.h}
        steps = Steps(rows, KEYS, tensors)
        add_numbers(steps, None if self.adagc else by_global_norm)
        return steps

    def write(
        self,
        folder: Path,
        rows: list[dict[str, Any]],
        ends: dict[str, Any] = FINISHED,
    ) -> Path:
        """Append a session of these rows to a record."""
        clip = "Gradient Clip By GlobalNorm, global_norm=1.000000"
        facts = {
            "clip": "ClipGradByAdaGC(t_start=0)" if self.adagc else clip,
            "shadow": None if self.adagc else SHADOW_TEXT,
            "optimizer": "AdamW",
            "model": "Net",
        }
        return write(folder, self.recorded(rows), facts, ends)


def by_global_norm(norms: np.ndarray, keys: Sequence[str]) -> np.ndarray:
    """Return a clip's factors, ``[num_steps, num_tensors]``."""
    size = np.sqrt(np.square(norms.astype(float)).sum(1, keepdims=True))
    h = np.where(np.isfinite(size), 1 / np.maximum(size, 1), np.nan)
    return np.broadcast_to(h, norms.shape)


def write(
    folder: Path, steps: Steps, facts: dict[str, Any], ends: dict[str, Any]
) -> Path:
    """Append a session to a record, as the thread of a training does."""
    numbers = [row["step"] for row in steps.rows] or [1]
    past = read_record(folder) if (folder / FILE).exists() else None
    writer = Writer(folder, numbers[0], facts, MAX_BYTES, None, past)
    writer.put(steps)
    assert writer.close({"step": numbers[-1], **ends}, 60) == 0
    return folder


class Batches:
    """Draws batches, most of them good ones."""

    def __init__(
        self, random: np.random.Generator, width: int, size: int
    ) -> None:
        self.random, self.size = random, size
        self.teacher = make_net(random, width, 2.0)
        self.other = make_net(random, width, 2.0)

    def draw(self, what: str = "") -> tuple[np.ndarray, np.ndarray]:
        x = self.random.normal(size=(self.size, 16))
        net = self.other if what == "shift" else self.teacher
        logits = _forward(net, x)[-1]
        noise = self.random.gumbel(size=logits.shape)
        y = (4 * logits + noise).argmax(1)
        if what == "labels":
            y = self.random.permutation(y)
        if what == "random":
            x = 4 * self.random.normal(size=x.shape)
            y = self.random.integers(0, CLASSES, self.size)
        if what == "kind":
            some = self.random.random(self.size) < 0.5
            y = np.where(some, self.random.permutation(y), y)
        if what == "nan":
            x = x * np.nan
        return x, y


class Adam:
    """A network and its moments."""

    def __init__(self, net: list[np.ndarray], beta2: float) -> None:
        self.net, self.beta2, self.done = net, beta2, 0
        self.first = [np.zeros_like(x) for x in net]
        self.second = [np.zeros_like(x) for x in net]

    def update(self, gradients: list[np.ndarray], rate: float) -> None:
        self.done += 1
        for i, g in enumerate(gradients):
            self.first[i] += 0.1 * (g - self.first[i])
            self.second[i] += (1 - self.beta2) * (g**2 - self.second[i])
            m = self.first[i] / (1 - 0.9**self.done)
            v = self.second[i] / (1 - self.beta2**self.done)
            self.net[i] = self.net[i] - rate * m / (np.sqrt(v) + 1e-8)


def make_net(random: np.random.Generator, width: int, gain: float) -> list[Any]:
    sizes = [16, *[width] * (NUM_LAYERS - 1), CLASSES]
    net = []
    for a, b in itertools.pairwise(sizes):
        net += [random.normal(size=(a, b)) * gain / a**0.5, np.zeros(b)]
    return net


def _forward(net: list[np.ndarray], x: np.ndarray) -> list[np.ndarray]:
    found = [x]
    for i in range(NUM_LAYERS):
        z = found[-1] @ net[2 * i] + net[2 * i + 1]
        found.append(np.tanh(z) if i < NUM_LAYERS - 1 else z)
    return found


def gradients_of(
    net: list[np.ndarray], x: np.ndarray, y: np.ndarray
) -> tuple[float, list[np.ndarray]]:
    found = _forward(net, x)
    logits = found[-1] - found[-1].max(1, keepdims=True)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = float(-np.log(chances[np.arange(len(y)), y] + 1e-30).mean())
    delta = chances
    delta[np.arange(len(y)), y] -= 1
    delta /= len(y)
    gradients: list[np.ndarray] = []
    for i in reversed(range(NUM_LAYERS)):
        gradients[:0] = [found[i].T @ delta, delta.sum(0)]
        if i:
            delta = delta @ net[2 * i].T * (1 - found[i] ** 2)
    return loss, gradients
