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
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

FIRST_JUDGED = 16
"""Values before the first that is judged."""

EVENT_GAP = 10
"""Calm steps that end an event."""

WINDOW = 64
NORMAL_CONSISTENCY = 1.482602218505602
"""Standard deviation of a normal distribution over its MAD."""

_SHORT = 8  # values whose mean is judged, too


@dataclasses.dataclass(frozen=True)
class Rule:
    """When a value is abnormal: both bounds have to be exceeded."""

    sigma: float
    """Deviations above usual."""

    least: float
    """Distance from usual, of logarithms or relative to usual."""


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "loss": Rule(sigma=6.0, least=math.log(1.1)),
        "global_grad_norm": Rule(sigma=8.0, least=math.log(5.0)),
    }
)
"""Series in which spikes and shifts are found."""

LOUD = 100.0
"""Times its usual norm: no tensor of a calm run was seen there."""

_LIMITS = {"nonfinite": 0.0, "tensor_norm": LOUD, "stuck": 0.0}
_STATES = {"small_second_moment": 0.5, "masked": 3.0}
_LOW_H, _LOW_H_STEPS = 0.5, 200
_SLOW, _SLOW_STEPS = 4.0, 16


@dataclasses.dataclass(frozen=True)
class Event:
    """Something abnormal that began in a step."""

    kind: str
    """``"spike"``, where it begins; ``"shift"``: it has not come back for 64
    steps; ``"end"``: the loss is not finite; ``"state"``: it lasts."""

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

    score: float = math.inf
    """Distance of the value from usual, in deviations."""

    @property
    def text(self) -> str:
        """One line for a log."""
        where = f"step {self.step}: "
        if self.kind == "state":
            where = f"from step {self.step} on "
        if self.series in _TEXTS:
            said = _TEXTS[self.series].format(x=self.value, usual=self.usual)
            return where + said
        said = f"{where}{self.series} {self.value:.4g}"
        if math.isfinite(self.usual):
            said += f" (usual {self.usual:.4g})"
        if self.kind == "shift":
            said += f"; it has not come back in {WINDOW} steps"
        return said


_TEXTS = {
    "nonfinite": "{x:.0f} tensors with Inf or NaN",
    "tensor_norm": "a tensor at {x:.3g} times its usual norm",
    "stuck": "{x:.0f} tensors were clipped below h 0.01 in each of 200 steps: "
    "they hardly train",
    "h_median": "the clip left less than half of the median tensor's gradient "
    "for 200 steps: the threshold is low for calm steps, or the norm has risen",
    "masked": "the norm before the clip is {x:.3g} times its lowest level of "
    "before, while h fell: the clip hides an instability",
    "small_second_moment": "{x:.0%} of the elements have sqrt(v) below 10 "
    "epsilon: epsilon, not the gradient, sets their step",
    "step_seconds": "a step takes {x:.3g} s (usual {usual:.3g})",
}


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
        self._on: set[str] = set()
        self._low_h = 0
        self._masking = _Masking()
        self._seconds: deque[float] = deque(maxlen=WINDOW + _SLOW_STEPS)

    def add(self, step: int, numbers: Mapping[str, float]) -> list[Event]:
        """Take one step.

        Args:
            step: Its number; they ascend.
            numbers: Columns of a record, as far as they are known: ``loss``,
                ``global_grad_norm``, ``nonfinite``, ``tensor_norm``,
                ``h_median``, ``warm_up``, ``small_second_moment``, ``stuck``,
                ``step_seconds``; others are ignored.

        Returns:
            What began in this step, or proved lasting in it.
        """
        found: list[Event] = []
        for name, series in self._series.items():
            value = numbers.get(name)
            if value is None:
                continue
            if math.isfinite(value):
                event = series.add(step, value)
            elif name == "loss":
                event = self._once(Event("end", name, step, value))
            else:
                continue
            if event is not None:
                found.append(event)
        for name, limit in _LIMITS.items():
            value = numbers.get(name)
            if value is not None and value > limit:
                event = self._once(Event("spike", name, step, value, limit))
                if event is not None:
                    found.append(event)
        found += self._states(step, numbers)
        return found

    def _once(self, event: Event) -> Event | None:
        """Leave out what goes on from at most ten steps before."""
        last = self._last.get(event.series)
        self._last[event.series] = event.step
        is_new = last is None or event.step - last > EVENT_GAP
        return event if is_new else None

    def _states(
        self, step: int, numbers: Mapping[str, float]
    ) -> Iterable[Event]:
        h = numbers.get("h_median")
        norm = numbers.get("global_grad_norm")
        values = {"small_second_moment": numbers.get("small_second_moment")}
        if h is not None and not numbers.get("warm_up"):
            self._low_h = self._low_h + 1 if h < _LOW_H else 0
            if self._low_h == _LOW_H_STEPS:
                first = step - _LOW_H_STEPS + 1
                yield Event("state", "h_median", first, h, _LOW_H)
            if norm is not None and self._masking.add(norm, h):
                values["masked"] = self._masking.rise
        for name, value in values.items():
            if value is None or math.isnan(value):
                continue
            if value > _STATES[name] and name not in self._on:
                self._on.add(name)
                yield Event("state", name, step, value, _STATES[name])
            elif value <= _STATES[name]:
                self._on.discard(name)
        seconds = numbers.get("step_seconds")
        if seconds is not None and seconds > 0:
            self._seconds.append(seconds)
            if step % _SLOW_STEPS == 0:
                yield from self._slow(step)

    def _slow(self, step: int) -> Iterable[Event]:
        seconds = [*self._seconds]
        if len(seconds) < WINDOW + _SLOW_STEPS:
            return
        now = float(np.median(seconds[-_SLOW_STEPS:]))
        usual = float(np.median(seconds[:-_SLOW_STEPS]))
        if now > _SLOW * usual and "step_seconds" not in self._on:
            first = step - _SLOW_STEPS + 1
            self._on.add("step_seconds")
            yield Event("state", "step_seconds", first, now, usual)
        elif now <= _SLOW * usual:
            self._on.discard("step_seconds")


class _Series:
    """One series: what is usual, and the event that is open."""

    def __init__(self, name: str, rule: Rule) -> None:
        self._name, self._rule = name, rule
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._usual = self._older = Usual()
        """After all values, and after those before the last 8."""
        self._age = 0
        self._open: Event | None = None
        self._steps: deque[tuple[int, float]] = deque(maxlen=_SHORT)
        self._since: list[float] = []  # values since the event began
        self._num_calm = 0

    def add(self, step: int, value: float) -> Event | None:
        if self._open is not None:
            return self._follow(self._open, value)
        self._age += 1
        self._steps.append((step, value))
        mean = -math.inf
        if len(self._steps) == _SHORT:
            mean = sum(x for _, x in self._steps) / _SHORT
        is_due = self._age >= len(self._values) // 4 > 3
        if is_due or self._is_high(value, mean):
            values = [*self._values]
            self._usual = usual_of(values, self._rule, value)
            self._older = usual_of(values[: 1 - _SHORT], self._rule, value)
            self._age = 0
        if not self._is_high(value, mean):
            self._values.append(value)
            return None
        usual, bound = self._usual, self._usual.bounds[0]
        if value <= bound:  # higher for some steps, none of them far
            usual, bound = self._older, self._older.bounds[2]
            step, value = next(x for x in self._steps if x[1] > bound)
        self._since = [x for at, x in self._steps if at >= step]
        self._num_calm = 0
        self._open = Event(
            *("spike", self._name, step, value, usual.level, bound),
            usual.score(value),
        )
        self._steps.clear()
        return self._open

    def _is_high(self, value: float, mean: float) -> bool:
        return value > self._usual.bounds[0] or mean > self._older.bounds[1]

    def _follow(self, event: Event, value: float) -> Event | None:
        """Wait until the series is back, or has not been for a window."""
        self._since.append(value)
        is_high = value > event.bound
        self._num_calm = 0 if is_high else self._num_calm + 1
        is_over = self._num_calm >= EVENT_GAP
        if not is_over and len(self._since) < WINDOW:
            return None
        highs = sum(x > event.bound for x in self._since)
        is_shift = not is_over and highs > WINDOW / 2
        if is_shift:
            self._values.clear()
        kept = self._since
        if is_over and highs > EVENT_GAP // 3:
            kept = [x for x in kept if x <= event.bound]
        self._values.extend(kept)
        self._usual = self._older = Usual()
        self._open, self._age = None, WINDOW
        return dataclasses.replace(event, kind="shift") if is_shift else None


@dataclasses.dataclass(frozen=True)
class Usual:
    """What is usual after some values."""

    level: float = math.nan
    bounds: tuple[float, float, float] = (math.inf, math.inf, math.inf)
    """Of one value, of the mean of 8 values, and of the values in such a mean
    that has risen."""

    spread: float = math.nan
    is_log: bool = False

    def score(self, value: float) -> float:
        """Return the distance from the level in deviations."""
        distance = value - self.level
        if self.is_log:
            distance = math.log(value / self.level)
        return distance / self.spread if self.spread > 0 else math.inf


def usual_of(
    values: Iterable[float], rule: Rule, value: float = math.inf
) -> Usual:
    """Measure what is usual after some values, the last one being the newest.

    The line falls or is level. Where a descent ends the median of the last 8
    values lies above it, and counts. Twice the distance of the highest tenth is
    usual, too, and what lies near the third highest of the last 16 values: data
    of two kinds have two levels.

    Args:
        values: Of the steps before, finite; fewer than 16 have no usual.
        rule: When a value is abnormal.
        value: The one to judge; the logarithm is taken if it and all others
            are positive.
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
    upper = float(np.partition(flat, num - 1 - num // 10)[num - 1 - num // 10])
    least = rule.least if is_log else rule.least * abs(level)
    sigma = rule.sigma * (1 + 8 / num)
    two_levels = 2 * (upper - center)
    third = float(np.partition(logs[-16:], -3)[-3])
    bounds = (
        max(level + max(sigma * spread, least, two_levels), third + least / 2),
        level + max(sigma * spread / 2, least, two_levels / 2),
        level + max(sigma * spread / 4, least / 2),
    )
    if not is_log:
        return Usual(level, bounds, spread)
    low, middle, high = map(_exp, bounds)
    return Usual(math.exp(level), (low, middle, high), spread, is_log=True)


_PLACES = np.arange(WINDOW, dtype=np.float64)


def _median(values: np.ndarray) -> float:
    """Return the (upper) median; ten times faster than NumPy's for few."""
    middle = len(values) // 2
    return float(np.partition(values, middle)[middle])


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


class _Masking:
    """How far the norm has risen while the clip cut more.

    Steps form blocks of 64. The last four blocks are compared with the one of
    the lowest norm among the 64 before; h has to be at most half of then.
    """

    def __init__(self) -> None:
        self.rise = 1.0
        self._open: list[tuple[float, float]] = []
        self._blocks: deque[tuple[float, float]] = deque(maxlen=68)

    def add(self, norm: float, h: float) -> bool:
        """Take a step; return whether a block is full, and ``rise`` is new."""
        if math.isfinite(norm) and math.isfinite(h):
            self._open.append((norm, h))
        if len(self._open) < WINDOW:
            return False
        norm, h = np.median(self._open, 0).tolist()
        self._blocks.append((norm, h))
        self._open.clear()
        blocks = [*self._blocks]
        past, risen = blocks[:-4], blocks[-4:]
        self.rise = 1.0
        if past and min(past)[0] > 0 and risen[-1][1] <= min(past)[1] / 2:
            self.rise = min(norm for norm, _ in risen) / min(past)[0]
        return True
