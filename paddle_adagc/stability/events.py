# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Events: neighbouring steps that count as one occurrence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

EVENT_GAP = 10
"""Default largest distance, in steps, between neighbours of one event."""


def group_events(
    steps: Iterable[int], event_gap: int = EVENT_GAP
) -> tuple[tuple[int, int], ...]:
    """Merge neighbouring steps into events.

    A step belongs to the event of the step before it in the list if it comes
    at most ``event_gap`` steps later; otherwise it starts an event. So 1 merges
    consecutive steps alone, and an event may last longer than ``event_gap``.

    Args:
        steps: Ascending.
        event_gap: At least 1.

    Returns:
        First and last step of every event, in order.
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
    at a low threshold and two at a higher one.)

    Args:
        steps: ``[num_values]``, ascending.
        values: ``[num_values]``.
        thresholds: At least one.
        event_gap: At least 1.
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
