# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures of runs from their losses, and limits of paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from adagc_lab.reproduce.store import steps_of

REFERENCE = "GlobalGC 1"
"""Method that the others are compared with."""

PEAK = 0.5
"""Nat above the level before that make a peak of noisy text or of a fault."""

LOW_NOISE_PEAK = 0.1
"""The same where a few sequences are learnt by heart: the loss is about 0.06
there, and its standard deviation below 0.01."""

BEFORE = 50
"""Losses before a step whose median is its level."""

GAP = 10
"""Steps below the height that end a peak."""

END = 500
"""Last steps of a run, whose losses are its end."""

OVER_REFERENCE = "damage_over_reference"
_OF_TWINS = ("damage", OVER_REFERENCE, "fault_peaks", "worst_rise")
_RESAMPLES = 20_000

Row = dict[str, Any]
"""A run, as :func:`.store.load` gives it."""

Key = tuple[int, str]
"""Seed and processor."""


class Difference(NamedTuple):
    """The mean of paired differences with its 95% limits."""

    mean: float
    low: float
    high: float
    number: int

    @property
    def is_shown(self) -> bool:
        """Whether the limits leave out zero."""
        return self.low > 0 or self.high < 0


def difference(values: Sequence[float]) -> Difference | None:
    """Return the mean with bootstrap limits; None of fewer than two values.

    The limits are percentiles of 20,000 resampled means, wider by Student's
    factor ("expanded percentiles", Hesterberg 2015): plain percentiles of eight
    values are too narrow. They are never wider than the values.
    """
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    number = len(known)
    if number < 2:
        return None
    student = stats.t.ppf(0.025, number - 1) * np.sqrt(number / (number - 1))
    tail = 100 * float(stats.norm.cdf(student))
    drawn = np.random.RandomState(0).randint(0, number, (_RESAMPLES, number))
    means = known[drawn].mean(axis=1)
    low, high = np.percentile(means, [tail, 100 - tail])
    return Difference(float(known.mean()), float(low), float(high), number)


def shown(found: Difference | None, digits: int = 3) -> str:
    """Return ``"+0.061 (+0.057, +0.065)"``, or a dash."""
    if found is None:
        return "–"
    mean, low, high = (_signed(x, digits) for x in found[:3])
    return f"{mean} ({low}, {high})"


def _signed(value: float, digits: int) -> str:
    text = fixed(value, digits, "+")
    return text.replace("-", "+") if float(text) == 0 else text


def fixed(value: Any, digits: int, sign: str = "") -> str:
    """Format a number alike on every processor: last bits never decide."""
    return f"{round(float(value), 9):{sign}.{digits}f}"


def judged(row: Row) -> np.ndarray:
    """Losses that say something about the model, NaN elsewhere.

    Left out are the first ``skip_steps`` and the corrupted batches.
    """
    loss = np.array(row["loss"], np.float64)
    loss[: row["skip_steps"]] = np.nan
    loss[[step for step in steps_of(row["left_out"]) if step < len(loss)]] = (
        np.nan
    )
    return loss


def peaks(loss: np.ndarray, height: float = PEAK) -> list[float]:
    """Return how high each peak is, over the median of the losses before it.

    A step is in a peak if its loss is ``height`` above the median of the
    :data:`BEFORE` judged losses before; steps at most :data:`GAP` apart are
    in one. Every judged step with that many before it counts.
    """
    known = loss[np.isfinite(loss)]
    if len(known) <= BEFORE:
        return []
    level = pd.Series(known).rolling(BEFORE).median().shift(1).to_numpy()
    with np.errstate(invalid="ignore"):
        return _groups(known - level, height)


def excess_peaks(loss: np.ndarray, clean: np.ndarray) -> list[float]:
    """Return how high each peak over a run's clean twin is, from ``PEAK`` on.

    A peak begins above 0.2 nat, and ends when it stays below for more than
    :data:`GAP` steps.
    """
    number = min(len(loss), len(clean))
    rise = loss[:number] - clean[:number]
    rise = rise[np.isfinite(rise)]
    return [height for height in _groups(rise, 0.2) if height > PEAK]


def _groups(rise: np.ndarray, height: float) -> list[float]:
    """Return the largest value of each group of steps above ``height``."""
    steps = np.flatnonzero(rise > height)
    if not len(steps):
        return []
    starts = np.flatnonzero(np.diff(steps) > GAP) + 1
    return [float(rise[part].max()) for part in np.split(steps, starts)]


def measure(row: Row) -> dict[str, float]:
    """Return what a run's losses say; nothing of a run without losses."""
    if not row["num_losses"]:
        return {}
    loss = judged(row)
    if row["status"] == "diverged" or not np.isfinite(loss).any():
        names = ("worst", "mean", "end")
        return {"peaks": 1.0, "low_peaks": 1.0, **dict.fromkeys(names, np.inf)}
    found = peaks(loss)
    low = peaks(loss, LOW_NOISE_PEAK)
    known = loss[np.isfinite(loss)]
    return {
        "peaks": float(len(found)),
        "low_peaks": float(len(low)),
        "worst": max(low, default=0.0),
        "mean": float(known.mean()),
        "end": float(known[-END:].mean()),
    }


def damage(row: Row, clean: Row) -> dict[str, float]:
    """Compare a run with faults with another without them, same batches.

    ``damage`` is the mean loss above the other's, from the first fault to the
    end, in nat; ``fault_peaks`` counts the peaks of the excess.
    """
    loss, other = judged(row), judged(clean)
    number = min(len(loss), len(other))
    first = min(steps_of(row["faults"]))
    excess = (loss[:number] - other[:number])[first:]
    excess = excess[np.isfinite(excess)]
    found = excess_peaks(loss[first:], other[first:])
    return {
        "damage": float(excess.mean()),
        "fault_peaks": float(len(found)),
        "worst_rise": float(excess.max()),
    }


class Pairs:
    """Runs of one recipe, paired by seed, length and type of processor."""

    def __init__(self, rows: pd.DataFrame, reference: str) -> None:
        """``rows`` as :func:`.store.load` gives them; ``reference`` a method.

        A run that several targets hold counts once, and so does a seed that
        ran on several processors: the one whose processor is known.
        """
        self.reference = reference
        self.rows: list[Row] = rows.sort_values(
            ["processor"], ascending=False, kind="stable"
        ).to_dict("records")
        self._measured: dict[int, dict[str, float]] = {}

    def methods(self) -> list[str]:
        """All methods but the reference."""
        found = dict.fromkeys(row["method"] for row in self.rows)
        return [method for method in found if method != self.reference]

    def lengths(self) -> list[int]:
        """Lengths of the runs, shortest first."""
        return sorted({row["steps"] for row in self.rows})

    def runs(self, method: str, steps: int, twin: int = 0) -> dict[Key, Row]:
        """Runs of a method and length, by seed and processor."""
        found: dict[Key, Row] = {}
        for row in self.rows:
            is_own = row["method"] == method and row["steps"] == steps
            if is_own and row["clean_twin"] == twin:
                found.setdefault((row["seed"], row["processor"]), row)
        return found

    def values(
        self, method: str, steps: int, name: str
    ) -> tuple[list[float], list[float]]:
        """Return the reference's numbers and the method's, seed by seed.

        ``name`` is a column, or a number of :func:`measure` or
        :func:`damage`; with ``damage_over_reference`` the other run is the
        reference's clean twin. Pairs in which one has no such number are left
        out.
        """
        ours = self.numbers(method, steps, name)
        others = self.numbers(self.reference, steps, name)
        keys: dict[int, Key] = {}
        for key in others:
            if key in ours:
                keys.setdefault(key[0], key)
        return [others[k] for k in keys.values()], [
            ours[k] for k in keys.values()
        ]

    def numbers(self, method: str, steps: int, name: str) -> dict[Key, float]:
        """Return one number of a method's runs, by seed and processor."""
        base = self.reference if name == OVER_REFERENCE else method
        twins = self.runs(base, steps, 1) if name in _OF_TWINS else {}
        found = {}
        for key, row in self.runs(method, steps).items():
            if name in _OF_TWINS:
                value = self._damage(row, twins.get(key), name)
            elif name in row:
                value = row[name]
            else:
                if id(row) not in self._measured:
                    self._measured[id(row)] = measure(row)
                value = self._measured[id(row)].get(name, np.nan)
            if not np.isnan(value):
                found[key] = float(value)
        return found

    def _damage(self, row: Row, twin: Row | None, name: str) -> float:
        if twin is None or not row["faults"]:
            return np.nan
        if not row["num_losses"] or not twin["num_losses"]:
            return np.nan
        found = damage(row, twin)
        return found["damage" if name == OVER_REFERENCE else name]
