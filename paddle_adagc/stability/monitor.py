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

from paddle_adagc.checks import check_integer, check_positive
from paddle_adagc.stability.spike_score import SpikeScore, spike_score


@dataclasses.dataclass(frozen=True)
class Spike:
    """One spike, as it is seen when it happens."""

    step: int
    """Position in the series, from 0."""

    loss: float

    def __str__(self) -> str:
        """One line for a log."""
        return f"step {self.step}: loss {self.loss:.6g} is a spike"


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
        """Take the next loss of the series; return the spike, if it is one.

        Raises:
            TypeError: ``loss`` is no real number.
        """
        series = [*self._past, loss]
        found = spike_score(series, self._window, self._sigma)
        step, loss = self._num_values, float(loss)
        self._num_values += 1
        if math.isfinite(loss):
            self._past.append(loss)
        if not found.num_spikes:
            return None
        self._spikes.append(step)
        return Spike(step, loss)

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
            ValueError: A missing key, or a state of other settings. The monitor
                is then unchanged.
        """
        check_state(state, self.state_dict())
        self._num_values = state["num_values"]
        self._past = deque(state["window"], self._window)
        self._spikes = [*state["spikes"]]


def check_state(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse a state without the keys of a monitor's own, or its settings."""
    if missing := own.keys() - state.keys():
        raise ValueError(f"the state lacks {', '.join(sorted(missing))}")
    if state["config"] != own["config"]:
        raise ValueError(
            f"the state is of a monitor with {state['config']}, this one has "
            f"{own['config']}: make it with the same settings"
        )
