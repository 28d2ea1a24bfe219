# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The settings of the spike score: when a value counts as a spike."""

from __future__ import annotations

from dataclasses import dataclass

from paddle_adagc.checks import check_choice, check_integer, check_positive
from paddle_adagc.stability.events import EVENT_GAP

DIRECTIONS = ("both", "up", "down")
DEVIATIONS = ("sample", "population")


@dataclass(frozen=True, kw_only=True)
class SpikeRule:
    """When a value spikes against the values before it; the paper's defaults.

    A finite value is a spike if it differs from the mean of the window by at
    least ``sigma`` standard deviations of the window; a value equal to the mean
    never is. The window holds the ``window`` finite values before the value.
    Until it is full no finite value is judged. NaN and Inf need no window:
    they are spikes wherever they stand, and never enter it.

    Raises:
        TypeError: A count is not an integer, or ``sigma`` is not a number.
        ValueError: A value out of its range, named in the message.
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
