# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spike score of a finished series of losses."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paddle_adagc.checks import (
    check_choice,
    check_integer,
    check_positive,
    check_series,
)

EVENT_GAP = 10
"""Default largest distance, in steps, between neighbours of one event."""


def group_events(
    steps: Iterable[int], event_gap: int = EVENT_GAP
) -> tuple[tuple[int, int], ...]:
    """Merge neighbouring steps into events.

    A step belongs to the event of the step before it in the list if it comes
    at most ``event_gap`` steps later; otherwise it starts an event. So 1 merges
    consecutive steps alone, and an event may last longer than ``event_gap``.
    Returns the first and the last step of every event; ``steps`` ascend.
    """
    events: list[tuple[int, int]] = []
    for step in steps:
        step = int(step)
        if events and step - events[-1][1] <= event_gap:
            events[-1] = (events[-1][0], step)
        else:
            events.append((step, step))
    return tuple(events)


def count_events(
    steps: np.ndarray,
    values: np.ndarray,
    thresholds: Sequence[float],
    event_gap: int = EVENT_GAP,
) -> dict[float, int]:
    """Count events above each threshold; a higher one never has more.

    Events are delimited once, at the lowest threshold: an event ends when the
    values stay at or below it for more than ``event_gap`` steps. Above a
    higher threshold count the events whose largest value exceeds it.
    (Delimited at every threshold anew, one event with a dip would be one event
    at a low threshold and two at a higher one.) Steps, which ascend, and values
    are ``[num_values]``.
    """
    high = values > min(thresholds)
    events = group_events(steps[high].tolist(), event_gap)
    largest = [
        values[(steps >= first) & (steps <= last)].max()
        for first, last in events
    ]
    return {
        threshold: sum(peak > threshold for peak in largest)
        for threshold in thresholds
    }


def window_for(num_steps: int) -> int:
    """Window for a run of that length: the paper's 1,000 steps, or 200."""
    return 1000 if num_steps > 1000 else 200


DIRECTIONS = ("both", "up", "down")
DEVIATIONS = ("sample", "population")


@dataclass(frozen=True)
class SpikeRule:
    """When a value spikes against the values before it; the paper's defaults.

    A finite value is a spike if it differs from the mean of the window by at
    least ``sigma`` standard deviations of the window; a value equal to the mean
    never is. The window holds the ``window`` finite values before the value.
    Until it is full no finite value is judged. NaN and Inf need no window:
    they are spikes wherever they stand, and never enter it.
    """

    window: int = 1000
    """Number of preceding finite values to compare with, at least 2."""

    sigma: float = 10.0
    """Least distance from the window's mean, in standard deviations, > 0."""

    direction: str = "both"
    """``"both"``, ``"up"`` (above the mean only) or ``"down"``."""

    deviation: str = "sample"
    """``"sample"`` (divide by window - 1) or ``"population"`` (by window)."""

    skip: int = 0
    """Number of first values to leave out: never judged, not in a window."""

    event_gap: int = EVENT_GAP
    """Spikes at most this many steps after the one before are one event."""

    def __post_init__(self) -> None:
        """Validate every field, and make counts plain integers."""
        for name, minimum in (("window", 2), ("skip", 0), ("event_gap", 1)):
            number = check_integer(name, getattr(self, name), minimum)
            object.__setattr__(self, name, number)
        object.__setattr__(self, "sigma", check_positive("sigma", self.sigma))
        check_choice("direction", self.direction, DIRECTIONS)
        check_choice("deviation", self.deviation, DEVIATIONS)


class ExactWindow:
    """The last ``rule.window`` finite values, their sum and sum of squares.

    A float64 is an integer over a power of two. Over one common power of two
    both sums are integers, which Python keeps exact: the subtraction
    ``window * sum_of_squares - sum**2`` loses no digits, a window of equal
    values has a deviation of exactly 0, and the sums depend on the values in
    the window alone, not on how they came there. A step costs O(1) operations
    on integers of a few machine words. ``values`` are the first content, finite
    and oldest first.
    """

    def __init__(self, rule: SpikeRule, values: Iterable[float] = ()) -> None:
        self._size = rule.window
        self._divisor = rule.window - (rule.deviation == "sample")
        self._up = rule.direction != "down"
        self._down = rule.direction != "up"
        numerator, denominator = rule.sigma.as_integer_ratio()
        self._distance_factor = denominator**2 * self._divisor
        self._spread_factor = numerator**2 * self._size
        self._bits = 0
        self._integers: deque[int] = deque()
        self._sum = 0
        self._sum_of_squares = 0
        for value in values:
            self.push(value)

    def __len__(self) -> int:
        """Return the number of values in the window."""
        return len(self._integers)

    @property
    def full(self) -> bool:
        """Whether the window holds enough values to judge the next one."""
        return len(self._integers) == self._size

    @property
    def values(self) -> list[float]:
        """Content, oldest first."""
        unit = 1 << self._bits
        return [integer / unit for integer in self._integers]

    def push(self, value: float) -> None:
        """Let a finite value in, and the oldest one out of a full window."""
        new = self._to_integer(value)
        if self.full:
            old = self._integers.popleft()
            self._sum -= old
            self._sum_of_squares -= old * old
        self._integers.append(new)
        self._sum += new
        self._sum_of_squares += new * new

    def is_spike(self, value: float) -> bool:
        """Whether a finite value deviates by sigma or more; no if not full."""
        if not self.full:
            return False
        distance = self._size * self._to_integer(value) - self._sum
        if not (self._up if distance > 0 else self._down and distance < 0):
            return False
        # (x - mean)^2 >= sigma^2 * variance, times everything that divides.
        return (
            self._distance_factor * distance * distance
            >= self._spread_factor * self._spread()
        )

    def mean(self) -> float:
        """Mean of a full window, NaN before."""
        if not self.full:
            return math.nan
        return self._sum / (self._size << self._bits)

    def standard_deviation(self) -> float:
        """Return the standard deviation of a full window, NaN before."""
        if not self.full:
            return math.nan
        extra = 64
        variance = (self._spread() << 2 * extra) // (self._size * self._divisor)
        try:
            return math.isqrt(variance) / (1 << self._bits + extra)
        except OverflowError:
            return math.inf

    def _spread(self) -> int:
        return self._size * self._sum_of_squares - self._sum * self._sum

    def _to_integer(self, value: float) -> int:
        """``value * 2**bits``; more bits first if it needs them."""
        numerator, denominator = value.as_integer_ratio()
        bits = denominator.bit_length() - 1
        if bits > self._bits:
            shift = bits - self._bits
            self._integers = deque(x << shift for x in self._integers)
            self._sum <<= shift
            self._sum_of_squares <<= 2 * shift
            self._bits = bits
        return numerator << (self._bits - bits)


_NORMAL_CONSISTENCY = 1.482602218505602
"""Standard deviation of a normal distribution over its MAD."""

_CHUNK_ELEMENTS = 1 << 21


@dataclass(frozen=True, eq=False)
class SpikeScore:
    """Spikes of a series."""

    num_values: int
    """Length of the series, skipped and unjudged values included."""

    num_unjudged: int
    """Values without a full window before them, and the skipped ones."""

    indices: np.ndarray
    """Positions of the spikes in the series: int64 ``[num_spikes]``."""

    events: tuple[tuple[int, int], ...]
    """First and last spike of every event."""

    @property
    def num_judged(self) -> int:
        """Number of values that could be spikes."""
        return self.num_values - self.num_unjudged

    @property
    def num_spikes(self) -> int:
        """Number of values that are spikes."""
        return len(self.indices)

    @property
    def num_events(self) -> int:
        """Number of events: spikes at most ``event_gap`` steps apart."""
        return len(self.events)

    @property
    def percent(self) -> float:
        """Spikes in percent of all values (0 for an empty series)."""
        return 100.0 * self.num_spikes / max(self.num_values, 1)


def make_score(
    num_values: int,
    num_unjudged: int,
    indices: Sequence[int] | np.ndarray,
    event_gap: int,
) -> SpikeScore:
    """Count events and freeze the result."""
    positions = np.array(indices, dtype=np.int64)
    positions.setflags(write=False)
    events = group_events(positions.tolist(), event_gap)
    return SpikeScore(num_values, num_unjudged, positions, events)


def spike_score(
    losses: Sequence[float] | np.ndarray,
    window: int = 1000,
    sigma: float = 10.0,
    *,
    direction: str = "both",
    deviation: str = "sample",
    skip: int = 0,
    event_gap: int = EVENT_GAP,
) -> SpikeScore:
    """Share of values far from the rolling average of the values before them.

    Section 5 of the AdaGC paper (Evaluation Metrics): the percentage of values
    that deviate by at least ten standard deviations from the average of the
    preceding 1,000 values; the current value is not in the window. The
    percentage divides by all values. The decision is made in exact arithmetic,
    so a large offset or a constant series costs no digits; a constant series
    has no spikes. NaN and Inf are spikes wherever they stand, even before the
    window is full, and do not enter it.

    OLMo-core's StabilityMonitor compares with ``window=128, sigma=6.0,
    direction="up", deviation="population"``.

    Args:
        losses: ``[num_steps]``, one loss a step.
        window: Number of preceding finite values, at least 2.
        sigma: Least deviation in standard deviations of the window, > 0.
        direction: ``"both"``, ``"up"`` or ``"down"``.
        deviation: ``"sample"`` or ``"population"`` standard deviation.
        skip: Number of first losses to leave out (the initial descent, whose
            spread hides spikes for a whole window). They count as values and
            as unjudged.
        event_gap: A spike at most this many steps after the one before belongs
            to the same event.

    Raises:
        TypeError: ``losses`` are not real numbers, or a setting has a wrong
            type.
        ValueError: ``losses`` is not one-dimensional, or a setting is out of
            its range.

    Example:
        >>> spike_score([1.0, 2.0, 1.0, 2.0, 9.0], window=4).indices
        array([4])
    """
    rule = SpikeRule(window, sigma, direction, deviation, skip, event_gap)
    series = check_series("losses", losses)
    past = ExactWindow(rule)
    spikes = []
    for step, loss in enumerate(series[rule.skip :].tolist(), rule.skip):
        if not math.isfinite(loss):
            spikes.append(step)
            continue
        if past.is_spike(loss):
            spikes.append(step)
        past.push(loss)
    return make_score(
        series.size, _num_unjudged(series, rule), spikes, rule.event_gap
    )


def robust_spike_score(
    losses: Sequence[float] | np.ndarray,
    window: int = 1000,
    sigma: float = 10.0,
    *,
    direction: str = "both",
    skip: int = 0,
    event_gap: int = EVENT_GAP,
) -> SpikeScore:
    """Spike score with the median and MAD of the window.

    One event widens the standard deviation for a whole window and hides the
    next; the median and the median absolute deviation (MAD) hardly notice it.
    The MAD is multiplied by 1.4826, which makes it the standard deviation of
    normally distributed values. Where more than half of a window is equal the
    MAD is 0; there the mean absolute deviation from the median, times
    sqrt(pi / 2), takes its place, so only a constant window makes any change a
    spike. ``sigma`` is the least deviation in scaled MADs. Everything else,
    arguments and errors too, is as in :func:`spike_score`, in float64.
    """
    rule = SpikeRule(window, sigma, direction, skip=skip, event_gap=event_gap)
    series = check_series("losses", losses)
    finite = np.isfinite(series)
    is_spike = ~finite
    is_spike[: rule.skip] = False
    finite[: rule.skip] = False
    is_spike[finite] = _robust_spikes(series[finite], rule)
    return make_score(
        series.size,
        _num_unjudged(series, rule),
        np.flatnonzero(is_spike),
        rule.event_gap,
    )


def _num_unjudged(series: np.ndarray, rule: SpikeRule) -> int:
    num_finite = int(np.isfinite(series[rule.skip :]).sum())
    return min(series.size, rule.skip) + min(num_finite, rule.window)


def robust_center(windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return median and scaled MAD along the last axis.

    Where the MAD is 0 the mean absolute deviation stands for it.
    """
    median = np.median(windows, axis=-1)
    absolute = np.abs(windows - median[..., None])
    spread = _NORMAL_CONSISTENCY * np.median(absolute, axis=-1)
    mean = math.sqrt(math.pi / 2) * absolute.mean(axis=-1)
    return median, np.where(spread == 0, mean, spread)


def _robust_spikes(finite: np.ndarray, rule: SpikeRule) -> np.ndarray:
    """Bool ``[num_finite]``: which values of a finite series are spikes."""
    is_spike = np.zeros(finite.size, dtype=bool)
    chunk = max(1, _CHUNK_ELEMENTS // rule.window)
    for start in range(rule.window, finite.size, chunk):
        judged = finite[start : start + chunk]
        windows = np.lib.stride_tricks.sliding_window_view(
            finite[start - rule.window : start + judged.size - 1], rule.window
        )
        median, spread = robust_center(windows)
        distance = judged - median
        far = (distance != 0) & (np.abs(distance) >= rule.sigma * spread)
        if rule.direction != "both":
            far &= (distance > 0) == (rule.direction == "up")
        is_spike[start : start + judged.size] = far
    return is_spike
