# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Judge a run's numbers by what was usual just before. NumPy alone.

Usual is a straight line through the last 64 values, so that a descent is no
spread. The scale is logarithmic where all values are positive. Once a value is
abnormal, what was usual before it stays the measure until the series is back.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from paddle_adagc.watch.text import counted

FIRST_JUDGED = 16
"""Values before the first that is judged."""

EVENT_GAP = 10
"""Calm steps that end an event."""

WINDOW = 64
NORMAL_CONSISTENCY = 1.482602218505602
"""Standard deviation of a normal distribution over its MAD."""

_SHORT = 8  # values whose mean is judged, too


RULES = {
    "loss": (6.0, math.log(1.1)),
    "global_grad_norm": (8.0, math.log(5.0)),
}
"""Series in which spikes are found. A value is abnormal that is so
many deviations, and so far in logarithms or relative to usual, above usual."""


@dataclasses.dataclass(frozen=True)
class Event:
    """Something abnormal that began in a step."""

    kind: str
    """``"spike"``; ``"nan"``: the loss is not finite."""

    series: str
    """Name of the number, such as ``"loss"``."""

    step: int
    """First abnormal step."""

    value: float
    """The number in that step."""

    usual: float = math.nan
    """What would have been usual there."""

    bound: float = math.nan
    """The largest value that would not have been abnormal."""

    @property
    def text(self) -> str:
        """One line for a log."""
        where = f"step {self.step}: "
        if self.series == "nonfinite":
            number = counted(int(self.value), "tensor")
            return f"{where}{number} with Inf or NaN"
        said = f"{where}{self.series} {self.value:.4g}"
        if math.isfinite(self.usual):
            said += f" (usual {self.usual:.4g})"
        return said


class Judge:
    """Take the numbers of a run step by step; tell what begins.

    Example:
        >>> from paddle_adagc.watch.judge import Judge
        >>> judge = Judge()
        >>> for step in range(1, 40):
        ...     assert not judge.add(step, {"loss": 2 + step % 7 / 70})
        >>> [event] = judge.add(40, {"loss": 5.0})
        >>> event.kind, event.series, event.step
        ('spike', 'loss', 40)
    """

    def __init__(self) -> None:
        self._series = {name: _Series(name, r) for name, r in RULES.items()}
        self._last: dict[str, int] = {}

    def add(self, step: int, numbers: Mapping[str, float]) -> list[Event]:
        """Take one step.

        Args:
            step: Its number; they ascend.
            numbers: Columns of a record, as far as they are known: ``loss``,
                ``global_grad_norm``, ``nonfinite``.

        Returns:
            What began in this step.
        """
        found: list[Event] = []
        is_part = numbers.get("nonfinite", 0) > 0  # the norm of finite tensors
        for name, series in self._series.items():
            value = numbers.get(name)
            if is_part and name == "global_grad_norm":
                continue
            if value is not None and math.isfinite(value):
                event = series.add(step, value)
                if event is not None:
                    found.append(event)
        if not math.isfinite(numbers.get("loss", 0.0)):
            found += self._once(Event("nan", "loss", step, numbers["loss"]))
        elif (number := numbers.get("nonfinite", 0)) > 0:
            event = Event("spike", "nonfinite", step, number, 0.0, 0.0)
            found += self._once(event)
        return found

    def _once(self, event: Event) -> Iterator[Event]:
        """Leave out what goes on from at most ten steps before."""
        last = self._last.get(event.series, -math.inf)
        self._last[event.series] = event.step
        if event.step - last > EVENT_GAP:
            yield event


class _Series:
    """One series: what is usual, and the event that is open."""

    def __init__(self, name: str, rule: tuple[float, float]) -> None:
        self._name, self._rule = name, rule
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._usual = self._older = Usual()
        """After all values, and after those before the last 8."""
        self._age = 0
        self._steps: deque[int] = deque(maxlen=_SHORT)
        self._recent: deque[float] = deque(maxlen=_SHORT)
        self._open: Event | None = None
        self._since: list[float] = []  # values since the event began
        self._num_calm = 0

    def add(self, step: int, value: float) -> Event | None:
        if self._open is not None:
            self._follow(self._open, value)
            return None
        self._age += 1
        self._steps.append(step)
        self._recent.append(value)
        mean = -math.inf
        if len(self._recent) == _SHORT:
            mean = sum(self._recent) / _SHORT
        is_due = self._age >= len(self._values) // 4 > 3
        if is_due or self._is_high(value, mean):
            values = [*self._values]
            self._usual = usual_of(values, self._rule, value)
            self._older = usual_of(values[: 1 - _SHORT], self._rule, value)
            self._age = 0
        if not self._is_high(value, mean):
            self._values.append(value)
            return None
        return self._begin(step, value)

    def _is_high(self, value: float, mean: float) -> bool:
        return value > self._usual.bound or mean > self._older.mean_bound

    def _begin(self, step: int, value: float) -> Event:
        usual, bound = self._usual.level, self._usual.bound
        recent = [*zip(self._steps, self._recent, strict=True)]
        if value <= bound:  # higher for some steps, none of them far
            usual, bound = self._older.level, self._older.risen_bound
            step, value = next(x for x in recent if x[1] > bound)
        self._since = [x for at, x in recent if at >= step]
        self._num_calm = 0
        self._open = Event("spike", self._name, step, value, usual, bound)
        self._steps.clear()
        self._recent.clear()
        return self._open

    def _follow(self, event: Event, value: float) -> None:
        """Wait until the series is back, or has not been for a window."""
        self._since.append(value)
        self._num_calm = 0 if value > event.bound else self._num_calm + 1
        is_over = self._num_calm >= EVENT_GAP
        if not is_over and len(self._since) < WINDOW:
            return
        kept = self._since  # 64 values replace all before
        if is_over and sum(x > event.bound for x in kept) > EVENT_GAP // 3:
            kept = [x for x in kept if x <= event.bound]
        self._values.extend(kept)
        self._usual = self._older = Usual()
        self._open, self._age = None, WINDOW


class Usual(NamedTuple):
    """What is usual after some values."""

    level: float = math.nan
    bound: float = math.inf
    """The largest value that is not abnormal."""

    mean_bound: float = math.inf
    """The same for the mean of 8 values."""

    risen_bound: float = math.inf
    """Where the mean has risen, values above this belong to the event."""


def usual_of(
    values: Iterable[float], rule: tuple[float, float], value: float = math.inf
) -> Usual:
    """Measure what is usual after some values, the last one being the newest.

    The line falls or is level. Where a descent ends the median of the last 8
    values lies above it, and counts. Twice the distance of the highest tenth is
    usual, too, and what lies near the third highest of the last 16 values: data
    of two kinds have two levels.

    Fewer than 16 values have no usual. The logarithm is taken if they, and the
    ``value`` to judge, are positive.
    """
    found = np.fromiter(values, np.float64)
    num = len(found)
    if num < FIRST_JUDGED:
        return Usual()
    is_log = bool(found.min() > 0 and value > 0)
    logs = np.log(found) if is_log else found
    half = num // 2
    slope = min((_median(logs[half:]) - _median(logs[:half])) / half, 0.0)
    flat = logs - slope * _PLACES[:num]
    center = _median(flat)
    distance = np.abs(flat - center)
    spread = NORMAL_CONSISTENCY * _median(distance)
    spread = spread or math.sqrt(math.pi / 2) * float(distance.mean())
    late = min(_median(logs[-8:]), _median(logs))
    level = max(center + slope * num, late)
    upper = _smallest(flat, num - 1 - num // 10)
    third = _smallest(logs[-16:], -3)
    sigma, least = rule[0] * (1 + 8 / num), rule[1]
    least *= 1 if is_log else abs(level)
    two_levels = 2 * (upper - center)
    usual = (
        level,
        max(level + max(sigma * spread, least, two_levels), third + least / 2),
        level + max(sigma * spread / 2, least, two_levels / 2),
        level + max(sigma * spread / 4, least / 2),
    )
    return Usual(*(map(_exp, usual) if is_log else usual))


_PLACES = np.arange(WINDOW, dtype=np.float64)


def _smallest(values: np.ndarray, place: int) -> float:
    """Return the value at a place of the sorted ones."""
    return float(np.partition(values, place)[place])


def _median(values: np.ndarray) -> float:
    """Return the (upper) median; ten times faster than NumPy's for few."""
    return _smallest(values, len(values) // 2)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
