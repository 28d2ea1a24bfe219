# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs of many fates, made in seconds: a real network trained with NumPy.

A small classifier learns from a teacher with Adam, GlobalGC and AdaGC's shadow.
What happens to a run is done to its data, gradients or rate. Its numbers are
written by the library's store.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paddle_adagc.watch.replay import Settings, replay
from paddle_adagc.watch.store import Store
from paddle_adagc.watch.tensors import Usual

NUM_LAYERS, CLASSES = 4, 10
KEYS = [
    f"layers.{i}.fc.{name}"
    for i in range(NUM_LAYERS)
    for name in ("weight", "bias")
]
SHADOW = Settings(init="warmup_ema")
SHADOW_TEXT = "ClipGradByAdaGC(lambda_abs=1.0, t_start=100, init='warmup_ema')"


@dataclasses.dataclass
class Training:
    """A run; the functions get the step, 1 for the first."""

    steps: int = 400
    seed: int = 1
    width: int = 24
    batch: int = 128
    beta2: float = 0.99
    adagc: bool = False
    rate: Callable[[int], float] = lambda step: 0.002
    data: Callable[[int], str] = lambda step: ""
    gradients: Callable[[int, list[np.ndarray]], None] = lambda step, g: None
    ends: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"kind": "finished"}
    )
    raises: int = 0
    """The step whose NaN loss is raised before the update."""

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.teacher = self._net(self.random, 2.0)
        self.other = self._net(self.random, 2.0)
        self.net = self._net(self.random, 1.0)
        self.first = [np.zeros_like(x) for x in self.net]
        self.second = [np.zeros_like(x) for x in self.net]
        self.fixed = self._batch("")
        self.done = 0

    def _net(self, random: np.random.Generator, gain: float) -> list[Any]:
        sizes = [16, *[self.width] * (NUM_LAYERS - 1), CLASSES]
        net = []
        for a, b in itertools.pairwise(sizes):
            net += [random.normal(size=(a, b)) * gain / a**0.5, np.zeros(b)]
        return net

    def _batch(self, what: str) -> tuple[np.ndarray, np.ndarray]:
        x = self.random.normal(size=(self.batch, 16))
        net = self.other if what == "shift" else self.teacher
        logits = _forward(net, x)[-1]
        noise = self.random.gumbel(size=logits.shape)
        y = (4 * logits + noise).argmax(1)
        if what == "labels":
            y = self.random.permutation(y)
        if what == "random":
            x = 4 * self.random.normal(size=x.shape)
            y = self.random.integers(0, CLASSES, self.batch)
        if what == "kind":
            some = self.random.random(self.batch) < 0.5
            y = np.where(some, self.random.permutation(y), y)
        if what == "nan":
            x = x * np.nan
        return x, y

    def step(self) -> dict[str, Any]:
        """Make a step; return its numbers, and the norms of the tensors."""
        self.done += 1
        what, rate = self.data(self.done), self.rate(self.done)
        x, y = self.fixed if what == "fixed" else self._batch(what)
        with np.errstate(all="ignore"):
            loss, gradients = _gradients(self.net, x, y)
            if what == "easy":
                gradients = [0.02 * g for g in gradients]
            self.gradients(self.done, gradients)
            norms = np.array([np.sqrt((g**2).sum()) for g in gradients])
            norms = np.where(np.isfinite(norms), norms, np.inf)
            total = math.sqrt((norms[np.isfinite(norms)] ** 2).sum())
            h = np.full(len(norms), min(1.0, 1.0 / total) if total else 1.0)
            if np.isinf(norms).any():
                h[:] = np.nan  # GlobalGC
            if self.adagc:
                gamma = self.gamma if self.done > 1 else None
                found = replay(norms[None], Settings(t_start=0), gamma)
                h, self.gamma = found.h[0].astype(float), found.gamma[0]
                for i in np.flatnonzero(np.isinf(norms)):
                    gradients[i] = np.zeros_like(gradients[i])
            for i, g in enumerate(gradients):
                g = h[i] * g
                self.first[i] += 0.1 * (g - self.first[i])
                self.second[i] += (1 - self.beta2) * (g**2 - self.second[i])
                m = self.first[i] / (1 - 0.9**self.done)
                v = self.second[i] / (1 - self.beta2**self.done)
                self.net[i] = self.net[i] - rate * m / (np.sqrt(v) + 1e-8)
            left = h * norms
        return {
            "step": self.done,
            "loss": loss,
            "learning_rate": rate,
            "global_grad_norm": total if np.isfinite(norms).all() else math.nan,
            "clipped_grad_norm": float(np.sqrt((left**2)[h > 0].sum())),
            "clipped_fraction": float((h < 1).mean()),
            "h_min": float(h.min()),
            "h_median": float(np.median(h)),
            "nonfinite": int(np.isinf(norms).sum()),
            "step_seconds": 0.5,
            "norms": norms,
        }

    def run(self, until: int = 0) -> list[dict[str, Any]]:
        """Train to a step, or until a loss is raised."""
        last = self.raises - 1 if self.raises else until or self.steps
        return [self.step() for _ in range(last - self.done)]

    def write(self, folder: Path, rows: list[dict[str, Any]]) -> Path:
        """Append a session of these rows to a record."""
        norms = np.stack([row.pop("norms") for row in rows])
        shadow = replay(norms, SHADOW)
        for i, row in enumerate(rows):
            h, known = shadow.h[i], np.isfinite(norms[i])
            left = h[known] * norms[i][known]
            row["shadow_clipped_grad_norm"] = float(np.sqrt((left**2).sum()))
            before = Usual.of(norms[max(0, i - 128) : i])
            ratio, is_far = before.excess(norms[i : i + 1])
            is_far &= np.isfinite(ratio)
            row["tensor_norm"] = float(ratio.max(where=is_far, initial=1))
            row["shadow_clipped_fraction"] = float((h < 1).mean())
            row["shadow_h_min"] = float(h.min())
            row["shadow_h_median"] = float(np.median(h))
        clip = "Gradient Clip By GlobalNorm, global_norm=1.000000"
        facts = {
            "clip": "ClipGradByAdaGC(t_start=0)" if self.adagc else clip,
            "shadow": None if self.adagc else SHADOW_TEXT,
            "optimizer": "AdamW",
            "model": "Net",
            "beta2": self.beta2,
            "epsilon": 1e-8,
        }
        store = Store(folder)
        store.begin(rows[0]["step"], facts)
        quantities = {"norm": norms, "gamma": shadow.gamma, "h": shadow.h}
        store.append(rows, KEYS, quantities)
        if self.raises:
            ends = {
                "kind": "exception",
                "text": "ValueError: Loss contains inf or nan values",
                "step": rows[-1]["step"],
                "last_loss": math.nan,
            }
        else:
            ends = {"step": rows[-1]["step"], **self.ends}
        store.end(ends)
        store.close()
        return folder


def _forward(net: list[np.ndarray], x: np.ndarray) -> list[np.ndarray]:
    found = [x]
    for i in range(NUM_LAYERS):
        z = found[-1] @ net[2 * i] + net[2 * i + 1]
        found.append(np.tanh(z) if i < NUM_LAYERS - 1 else z)
    return found


def _gradients(
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


class Train(Protocol):
    """Writes a record into a folder; sizes: ``width``, ``batch``."""

    def __call__(
        self, folder: Path, seed: int, steps: int, **sizes: int
    ) -> Path: ...


# ---- the cases --------------------------------------------------------------


@dataclasses.dataclass
class Case:
    """A fate, and what a report may say of it."""

    train: Train
    kinds: set[str]
    """Allowed kinds of the verdict."""

    onset: Callable[[int], set[int]] = lambda steps: set()
    """Allowed steps of the event."""

    is_over: set[bool | None] = dataclasses.field(default_factory=set)
    causes: set[str] = dataclasses.field(default_factory=set)
    advice: set[str] = dataclasses.field(default_factory=set)
    """All that may be advised."""

    needs: set[str] = dataclasses.field(default_factory=set)
    """What has to be advised."""


def _simple(**made: Any) -> Train:
    """Return a way to train; a function of the steps makes an argument."""

    def train(folder: Path, seed: int, steps: int, **sizes: int) -> Path:
        given = {name: x(steps) for name, x in made.items()}
        training = Training(steps=steps, seed=seed, **{**sizes, **given})
        return training.write(folder, training.run())

    return train


def _calm(**values: Any) -> Case:
    made = {name: (lambda steps, x=x: x) for name, x in values.items()}
    return Case(_simple(**made), {"calm"}, advice={"nothing"})


def _bad(what: str, at: Callable[[int], int], **more: Any) -> Case:
    """One batch of another kind."""
    made = {"data": lambda n: lambda step: what if step == at(n) else ""}
    values = {"is_over": {True}, "causes": {"all", "several", "labels"}}
    values |= {"advice": {"nothing", "skip", "switch"}} | more
    return Case(_simple(**made), {"spike"}, lambda n: {at(n)}, **values)


def _scaled(places: list[int], factor: float, at: Callable[[int], int]) -> Any:
    def make(n: int) -> Callable[[int, list[np.ndarray]], None]:
        def change(step: int, gradients: list[np.ndarray]) -> None:
            if step == at(n):
                for i in places:
                    gradients[i] *= factor

        return change

    return make


def _growing(n: int) -> Callable[[int, list[np.ndarray]], None]:
    def change(step: int, gradients: list[np.ndarray]) -> None:
        for i in (4, 5):
            gradients[i] *= 1.12 ** max(0, min(step - n // 2, 60))

    return change


def _rate(factor: float, length: int) -> Any:
    def make(n: int) -> Callable[[int], float]:
        first = 3 * n // 5
        return lambda step: (
            0.01 * (factor if first <= step < first + length else 1)
        )

    return make


def _resumed(folder: Path, seed: int, steps: int, **sizes: int) -> Path:
    """A bad batch; resumed from a checkpoint before it, without it."""
    bad = 3 * steps // 5
    training = Training(
        steps=steps,
        seed=seed,
        data=lambda s: "random" if s == bad else "",
        **sizes,
    )
    training.write(folder, training.run(bad + 10))
    again = Training(steps=steps, seed=seed, **sizes)
    rows = again.run()[bad - 20 :]
    return again.write(folder, rows)


def _restarted(folder: Path, seed: int, steps: int, **sizes: int) -> Path:
    training = Training(steps=steps // 2, seed=seed, **sizes)
    training.write(folder, training.run())
    training = Training(steps=steps, seed=seed + 1000, **sizes)
    return training.write(Path(f"{folder}-2"), training.run())


def _late(n: int) -> int:
    return 3 * n // 4


def _mid(n: int) -> int:
    return n // 2


def _two_kinds(n: int) -> Callable[[int], str]:
    return lambda step: "kind" if (step * 2654435761) % 97 < 30 else ""


def _quiet(n: int) -> Callable[[int], str]:
    return lambda step: "easy" if n // 4 <= step < 3 * n // 4 else ""


def _ends(**end: Any) -> Callable[[int], dict[str, Any]]:
    return lambda n: end


_RETURN = {"return", "switch", "rate", "look"}
CASES = {
    "calm": _calm(),
    "calm, small batch": _calm(batch=32),
    "calm, large batch": _calm(batch=512),
    "calm, AdaGC": _calm(adagc=True),
    "calm, warm-up and decay": Case(
        _simple(
            rate=lambda n: (
                lambda s: (
                    0.006 * min(s / 50, 0.5 + 0.5 * math.cos(math.pi * s / n))
                )
            )
        ),
        {"calm"},
        advice={"nothing"},
    ),
    "calm, wide": _calm(width=64),
    "one batch, early": _bad("random", lambda n: 25),
    "one batch, late": _bad("random", _late),
    "one batch, in the descent": _bad("random", lambda n: 45),
    "one batch, last step": _bad(
        "random",
        lambda n: n,
        is_over={None},
        advice={"return", "skip", "switch"},
        needs={"return"},
    ),
    "labels": _bad("labels", _mid),
    "random tokens, twice": Case(
        _simple(
            data=lambda n: (
                lambda s: "random" if s in (n // 2, n // 2 + 1) else ""
            )
        ),
        {"spike"},
        lambda n: {n // 2},
        {True},
        {"all", "several", "labels"},
        {"nothing", "skip", "switch"},
    ),
    "one tensor x 3": Case(
        _simple(gradients=_scaled([4], 3.0, _mid)),
        {"calm", "spike"},
        lambda n: {n // 2},
        {True},
        {"tensor", ""},
        {"nothing", "look", "switch"},
    ),
    "one tensor x 1,000": Case(
        _simple(gradients=_scaled([4], 1e3, _mid)),
        {"spike"},
        lambda n: {n // 2},
        {True},
        {"tensor"},
        {"nothing", "look", "switch"},
    ),
    "growing layer": Case(
        _simple(gradients=_growing),
        {"spike", "shift"},
        lambda n: {*range(n // 2 + 5, n // 2 + 30)},
        {True, False, None},
        {"layer"},
        {"look", "return", "switch"},
        {"look"},
    ),
    "NaN in one gradient": Case(
        _simple(adagc=lambda n: True, gradients=_scaled([2], math.nan, _mid)),
        {"spike"},
        lambda n: {n // 2},
        {True, None},
        {"nonfinite"},
        {"nothing", "look", "skip", "return"},
    ),
    "NaN loss raised": Case(
        _simple(raises=lambda n: n - 20),
        {"stopped"},
        advice={"return"},
        needs={"return"},
    ),
    "NaN to the end": Case(
        _simple(data=lambda n: lambda s: "nan" if s == n - 50 else ""),
        {"end"},
        lambda n: {n - 50},
        {False},
        {"nonfinite"},
        {"return", "look", "skip"},
        {"return"},
    ),
    "rate x 15": Case(
        _simple(rate=_rate(15, 10**6)),
        {"shift"},
        lambda n: {*range(3 * n // 5, 3 * n // 5 + 8)},
        {False},
        {"rate"},
        {"return", "rate", "switch"},
        {"rate"},
    ),
    "rate x 50 for three steps": Case(
        _simple(rate=_rate(50, 3)),
        {"spike", "shift"},
        lambda n: {3 * n // 5, 3 * n // 5 + 1, 3 * n // 5 + 2},
        {True, False, None},
        {"rate"},
        {"return", "rate", "switch"},
        {"rate"},
    ),
    "lasting shift": Case(
        _simple(data=lambda n: lambda s: "shift" if s >= n - 100 else ""),
        {"spike", "shift"},
        lambda n: {n - 100},
        {True, False, None},
        {"lasting", "several", "labels", "all"},
        {"return", "switch"},
    ),
    "data of two kinds": Case(
        _simple(data=_two_kinds), {"calm"}, advice={"nothing"}
    ),
    "stale second moment": Case(
        _simple(data=_quiet, rate=lambda n: lambda s: 0.03),
        {"spike", "shift"},
        lambda n: {3 * n // 4},
        {True, False},
        {"stale"},
        {"nothing", "rate", "return", "switch"},
    ),
    "Adam on one batch": Case(
        _simple(
            data=lambda n: lambda s: "fixed",
            rate=lambda n: lambda s: 0.02,
            width=lambda n: 8,
            batch=lambda n: 400,
        ),
        {"spike", "shift", "calm"},
        lambda n: {*range(n + 1)},
        {True, False, None},
        {"all", "several", "lasting", "layer", "tensor", "stale", ""},
        {"nothing", "rate", "return", "switch", "look"},
    ),
    "a full disk": Case(
        _simple(ends=_ends(kind="disk", text="No space left on device")),
        {"stopped"},
        advice={"disk"},
        needs={"disk"},
    ),
    "a killed rank": Case(
        _simple(ends=_ends(kind="rank", text="rank 1 was lost")),
        {"stopped"},
        advice={"return"},
        needs={"return"},
    ),
    "a resumed run": Case(_resumed, {"calm"}, advice={"nothing"}),
    "a restarted run": Case(_restarted, {"calm"}, advice={"nothing"}),
}
