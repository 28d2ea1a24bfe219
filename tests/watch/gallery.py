# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs of many fates, made in seconds.

What happens to a run is done to its data, gradients or rate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from watch.network import Training

RAISED = {
    "kind": "exception",
    "text": "ValueError: Loss contains inf or nan values",
    "last_loss": math.nan,
}


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
    said: str
    """Allowed kinds of the verdict | causes (a dash: none) | what may be
    advised | what has to be. A hyphen stands for a space."""

    onset: Callable[[int], set[int]] = lambda steps: set()
    """Allowed steps of the event."""

    is_over: set[bool | None] = dataclasses.field(default_factory=set)


def _simple(**made: Any) -> Train:
    """Return a way to train; a function of the steps makes an argument."""

    def train(folder: Path, seed: int, steps: int, **sizes: int) -> Path:
        given = {name: x(steps) for name, x in made.items()}
        values = {"steps": steps, "seed": seed, **sizes, **given}
        training = Training(**values)
        return training.write(folder, training.run())

    return train


def _calm(**values: Any) -> Case:
    made = {name: (lambda steps, x=x: x) for name, x in values.items()}
    return Case(_simple(**made), "calm | | nothing")


def _bad(
    what: str,
    at: Callable[[int], int],
    advice: str = "nothing skip switch",
    is_over: bool | None = True,
) -> Case:
    """One batch of another kind."""
    train = _simple(data=lambda n: lambda s: what if s == at(n) else "")
    said = f"loss-spike | all several labels | {advice}"
    return Case(train, said, lambda n: {at(n)}, {is_over})


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


def _louder(n: int) -> Callable[[int, list[np.ndarray]], None]:
    def change(step: int, gradients: list[np.ndarray]) -> None:
        for gradient in gradients:
            gradient *= 1e6 if step >= n // 2 else 1

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
        "calm | | nothing",
    ),
    "calm, wide": _calm(width=64),
    "one batch, early": _bad("random", lambda n: 25),
    "one batch, late": _bad("random", _late),
    "one batch, in the descent": _bad("random", lambda n: 45),
    "one batch, last step": _bad(
        "random", lambda n: n, "return skip switch | return", None
    ),
    "labels": _bad("labels", _mid),
    "random tokens, twice": Case(
        _simple(
            data=lambda n: lambda s: "random" if 0 <= s - n // 2 < 2 else ""
        ),
        "loss-spike | all several labels | nothing",
        lambda n: {n // 2},
        {True},
    ),
    "one tensor x 3": Case(
        _simple(gradients=_scaled([4], 3.0, _mid)),
        "calm norm-spike | tensor - | nothing",
        lambda n: {n // 2},
        {True},
    ),
    "one tensor x 1,000": Case(
        _simple(gradients=_scaled([4], 1e3, _mid)),
        "norm-spike | tensor | nothing",
        lambda n: {n // 2},
        {True},
    ),
    "growing layer": Case(
        _simple(gradients=_growing),
        "norm-shift loss-spike loss-shift | layer | look return switch | look",
        lambda n: {*range(n // 2 + 5, n // 2 + 30)},
        {True, False, None},
    ),
    "NaN in one gradient, AdaGC": Case(
        _simple(adagc=lambda n: True, gradients=_scaled([2], math.nan, _mid)),
        "gradient-nan | nonfinite | nothing",
        lambda n: {n // 2},
        {True},
    ),
    "NaN in one gradient": Case(
        _simple(gradients=_scaled([2], math.nan, _mid)),
        "loss-nan | nonfinite | return look skip switch | "
        "return look skip switch",
        lambda n: {n // 2},
        {False},
    ),
    "all norms x 1e6 for good": Case(
        _simple(gradients=_louder),
        "norm-shift | lasting | nothing",
        lambda n: {n // 2},
        {True},
    ),
    "NaN loss raised": Case(
        _simple(steps=lambda n: n - 21, ends=_ends(**RAISED)),
        "stopped | | return | return",
    ),
    "NaN to the end": Case(
        _simple(data=lambda n: lambda s: "nan" if s == n - 50 else ""),
        "loss-nan | nan | return look skip switch | return look",
        lambda n: {n - 50},
        {False},
    ),
    "rate x 15": Case(
        _simple(rate=_rate(15, 10**6)),
        "loss-shift | rate | return rate | return rate",
        lambda n: {*range(3 * n // 5, 3 * n // 5 + 8)},
        {False},
    ),
    "rate x 50 for three steps": Case(
        _simple(rate=_rate(50, 3)),
        "loss-spike loss-shift | rate | return rate | rate",
        lambda n: {3 * n // 5, 3 * n // 5 + 1, 3 * n // 5 + 2},
        {True, False, None},
    ),
    "rate x 30 for five steps": Case(
        _simple(rate=_rate(30, 5)),
        "loss-spike loss-shift | rate | return rate | rate",
        lambda n: {*range(3 * n // 5, 3 * n // 5 + 5)},
        {True, False, None},
    ),
    "lasting shift": Case(
        _simple(data=lambda n: lambda s: "shift" if s >= n - 100 else ""),
        "loss-spike loss-shift | lasting several labels all | return switch",
        lambda n: {n - 100},
        {True, False, None},
    ),
    "data of two kinds": Case(_simple(data=_two_kinds), "calm | | nothing"),
    "stale second moment": Case(
        _simple(data=_quiet, rate=lambda n: lambda s: 0.03),
        "loss-spike loss-shift norm-spike norm-shift | stale | "
        "nothing return switch",
        lambda n: {3 * n // 4},
        {True, False},
    ),
    "Adam on one batch": Case(
        _simple(
            data=lambda n: lambda s: "fixed",
            rate=lambda n: lambda s: 0.02,
            width=lambda n: 8,
            batch=lambda n: 400,
        ),
        "calm loss-spike loss-shift norm-spike norm-shift | "
        "all several lasting layer tensor stale - | "
        "nothing rate return switch look",
        lambda n: {*range(n + 1)},
        {True, False, None},
    ),
    "a full disk": Case(
        _simple(ends=_ends(kind="disk", text="No space left on device")),
        "stopped | | disk | disk",
    ),
    "a killed rank": Case(
        _simple(ends=_ends(kind="rank", text="rank 1 was lost")),
        "stopped | | return | return",
    ),
    "a resumed run": Case(_resumed, "calm | | nothing"),
    "a restarted run": Case(_restarted, "calm | | nothing"),
}
