# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spike score of a finished series of losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paddle_adagc.checks import check_series
from paddle_adagc.stability.events import EVENT_GAP, group_events
from paddle_adagc.stability.rolling import ExactWindow
from paddle_adagc.stability.spike_rule import SpikeRule

NORMAL_CONSISTENCY = 1.482602218505602
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
    rule = SpikeRule(
        window=window,
        sigma=sigma,
        direction=direction,
        deviation=deviation,
        skip=skip,
        event_gap=event_gap,
    )
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
    spike. Everything else is as in :func:`spike_score`, in float64.

    Args:
        losses: ``[num_steps]``.
        window: See :func:`spike_score`.
        sigma: Least deviation, in scaled MADs.
        direction: See :func:`spike_score`.
        skip: See :func:`spike_score`.
        event_gap: See :func:`spike_score`.

    Raises:
        TypeError: See :func:`spike_score`.
        ValueError: See :func:`spike_score`.
    """
    rule = SpikeRule(
        window=window,
        sigma=sigma,
        direction=direction,
        skip=skip,
        event_gap=event_gap,
    )
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


def _robust_spikes(finite: np.ndarray, rule: SpikeRule) -> np.ndarray:
    """Bool ``[num_finite]``: which values of a finite series are spikes."""
    is_spike = np.zeros(finite.size, dtype=bool)
    chunk = max(1, _CHUNK_ELEMENTS // rule.window)
    for start in range(rule.window, finite.size, chunk):
        judged = finite[start : start + chunk]
        windows = np.lib.stride_tricks.sliding_window_view(
            finite[start - rule.window : start + judged.size - 1], rule.window
        )
        median = np.median(windows, axis=1)
        absolute = np.abs(windows - median[:, None])
        spread = NORMAL_CONSISTENCY * np.median(absolute, axis=1)
        flat = spread == 0
        mean_absolute = absolute[flat].mean(axis=1)
        spread[flat] = math.sqrt(math.pi / 2) * mean_absolute
        distance = judged - median
        far = (distance != 0) & (np.abs(distance) >= rule.sigma * spread)
        if rule.direction != "both":
            far &= (distance > 0) == (rule.direction == "up")
        is_spike[start : start + judged.size] = far
    return is_spike
