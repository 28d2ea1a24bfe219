# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spikes reported while the run is going."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from paddle_adagc.checks import check_integer, check_positive, check_real
from paddle_adagc.stability.spike_score import (
    EVENT_GAP,
    SpikeScore,
    usual_center,
)


@dataclasses.dataclass(frozen=True)
class Spike:
    """One spike, as it is seen when it happens."""

    step: int
    """Position in the series, from 0."""

    loss: float
    mean: float
    """Mean of the window before it, NaN if that was not full."""

    standard_deviation: float
    """Standard deviation of that window, NaN if it was not full."""

    starts_event: bool
    """Whether it is the first spike of an event."""

    def __str__(self) -> str:
        """One line for a log."""
        if not math.isfinite(self.loss):
            return f"step {self.step}: loss {self.loss} is not finite"
        return (
            f"step {self.step}: loss {self.loss:.6g} is a spike (window: mean "
            f"{self.mean:.6g}, standard deviation "
            f"{self.standard_deviation:.3g})"
        )


class SpikeMonitor:
    """Judge one loss at a time, exactly as :func:`spike_score` does.

    Losses are numbers on the host: reading one from a tensor waits for the
    device, so pass the number that is logged anyway. Settings and their errors
    are those of :func:`spike_score`.

    Example:
        >>> monitor = SpikeMonitor(window=4)
        >>> [monitor.update(loss) for loss in (1.0, 2.0, 1.0, 2.0)]
        [None, None, None, None]
        >>> monitor.update(9.0).step
        4
    """

    def __init__(self, window: int = 1000, sigma: float = 10.0) -> None:
        self._window = check_integer("window", window, 2)
        self._sigma = check_positive("sigma", sigma)
        self._past = deque[float](maxlen=self._window)
        self._num_values = 0
        self._spikes: list[int] = []

    def update(self, loss: float) -> Spike | None:
        """Take the next loss of the series.

        Returns:
            The spike, if the loss is one.

        Raises:
            TypeError: ``loss`` is a string or cannot be made a ``float``.
        """
        if isinstance(loss, (str, bytes)):
            raise TypeError(f"loss must be a number, got {loss!r}")
        value = float(loss)
        step = self._num_values
        self._num_values += 1
        mean = deviation = math.nan
        if len(self._past) == self._window:
            mean, deviation = map(float, usual_center(np.array(self._past)))
        is_spike = not math.isfinite(value)
        if not is_spike:
            self._past.append(value)
            distance = abs(value - mean)
            is_spike = distance > 0 and distance >= self._sigma * deviation
        if not is_spike:
            return None
        starts_event = not self._spikes or step - self._spikes[-1] > EVENT_GAP
        self._spikes.append(step)
        return Spike(step, value, mean, deviation, starts_event)

    def score(self) -> SpikeScore:
        """Spike score of the losses so far."""
        indices = np.array(self._spikes, np.int64)
        return SpikeScore(self._num_values, len(self._past), indices)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON-serialisable values."""
        return {
            "config": {"window": self._window, "sigma": self._sigma},
            "num_values": self._num_values,
            "window": [*self._past],
            "spikes": [*self._spikes],
        }

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from another monitor's :meth:`state_dict`.

        Raises:
            TypeError: A value of a wrong type.
            ValueError: A missing key, a state of other settings, or one that no
                series can lead to. The monitor is then unchanged.
        """
        check_state(state, self.state_dict())
        num_values = check_integer("num_values", state["num_values"], 0)
        values = [check_real("window value", x) for x in state["window"]]
        spikes = [check_integer("spike", x, 0) for x in state["spikes"]]
        if len(values) > (most := min(self._window, num_values)):
            raise ValueError(
                f"the state's window holds {len(values)} values; after "
                f"{num_values} losses it holds at most {most}"
            )
        if spikes != sorted({*spikes} & {*range(num_values)}):
            raise ValueError(
                f"the state's spikes must ascend within [0, {num_values}), "
                f"got {spikes}"
            )
        self._past = deque(values, self._window)
        self._num_values, self._spikes = num_values, spikes


def check_state(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse a state without the keys of a monitor's own, or its settings.

    Settings of earlier versions that this one lacks are ignored.
    """
    if missing := own.keys() - state.keys():
        raise ValueError(f"the state lacks {', '.join(sorted(missing))}")
    config, settings = state["config"], own["config"]
    if {key: config.get(key) for key in settings} != settings:
        raise ValueError(
            f"the state is of a monitor with {config}, this one has "
            f"{settings}: make it with the same settings"
        )
