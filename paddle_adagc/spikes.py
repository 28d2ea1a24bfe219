# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spike score of a finished series of losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from paddle_adagc.checks import check_integer, check_positive

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

    @property
    def num_spikes(self) -> int:
        """Number of values that are spikes."""
        return len(self.indices)

    @property
    def percent(self) -> float:
        """Spikes in percent of all values (0 for an empty series)."""
        return 100.0 * self.num_spikes / (self.num_values or 1)


def spike_score(
    losses: Sequence[float] | np.ndarray,
    window: int = 1000,
    sigma: float = 10.0,
    *,
    skip: int = 0,
) -> SpikeScore:
    """Share of values far from the rolling average of the values before them.

    Section 5 of the AdaGC paper (Evaluation Metrics): the percentage of values
    that deviate by at least ten (sample) standard deviations from the average
    of the preceding 1,000 values; the current value is not in the window. The
    percentage divides by all values. A value equal to the average is no spike,
    so a constant series has none. NaN and Inf are spikes wherever they stand,
    even before the window is full, and do not enter it.

    Args:
        losses: ``[num_steps]``, one loss a step.
        window: Number of preceding finite values, at least 2.
        sigma: Least deviation in standard deviations of the window, > 0.
        skip: Number of first losses to leave out (the initial descent, whose
            spread hides spikes for a whole window). They count as values and
            as unjudged.

    Returns:
        The spikes, and their share in percent.

    Raises:
        TypeError: ``losses`` are not real numbers, or a setting has a wrong
            type.
        ValueError: ``losses`` is not one-dimensional, or a setting is out of
            its range.

    Example:
        >>> from paddle_adagc import spike_score
        >>> spike_score([1.0, 2.0, 1.0, 2.0, 9.0], window=4).indices
        array([4])
    """
    window = check_integer("window", window, 2)
    sigma = check_positive("sigma", sigma)
    skip = check_integer("skip", skip, 0)
    series = _series(losses)
    places = skip + np.flatnonzero(np.isfinite(series[skip:]))
    finite = series[places]
    is_spike = ~np.isfinite(series)
    is_spike[:skip] = False
    chunk = max(1, _CHUNK_ELEMENTS // window)
    for start in range(window, finite.size, chunk):
        values = finite[start : start + chunk]
        past = finite[start - window : start + values.size - 1]
        found = _are_spikes(values, sliding_window_view(past, window), sigma)
        is_spike[places[start : start + values.size]] = found
    num_unjudged = min(series.size, skip) + min(finite.size, window)
    return SpikeScore(series.size, num_unjudged, np.flatnonzero(is_spike))


def _series(losses: Any) -> np.ndarray:
    """Return losses as float64 ``[num_steps]``."""
    if isinstance(losses, Sequence):  # NumPy would cut bfloat16 to integers
        losses = [x.item() if hasattr(x, "item") else x for x in losses]
    series = np.asarray(losses)
    if series.dtype.kind not in "fi":  # the bits of bfloat16 are u
        raise TypeError(
            f"losses must be a series of real numbers, got {losses!r:.80} "
            f"(NumPy type {series.dtype})"
        )
    if series.ndim != 1:
        raise ValueError(
            f"losses must be one-dimensional, got shape {series.shape}"
        )
    return series.astype(np.float64)


def _are_spikes(
    values: np.ndarray, windows: np.ndarray, sigma: float
) -> np.ndarray:
    """Compare values with the windows before them, ``[num_values, window]``."""
    # Relative to the first value: a large offset then costs no digits, and
    # equal values have the deviation 0 exactly.
    first = windows[:, :1]
    relative = windows - first
    distance = np.abs(values - (first[:, 0] + relative.mean(1)))
    deviation = relative.std(1, ddof=1)
    return (distance > 0) & (distance >= sigma * deviation)
