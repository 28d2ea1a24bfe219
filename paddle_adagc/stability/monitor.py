# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spikes reported while the run is going."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from paddle_adagc.checks import check_integer, check_real
from paddle_adagc.stability.spike_score import (
    EVENT_GAP,
    ExactWindow,
    SpikeRule,
    SpikeScore,
    make_score,
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

    A step costs O(1) operations; the memory is the window and one integer a
    spike. Losses are numbers on the host: reading one from a tensor waits for
    the device, so pass the number that is logged anyway. Settings and their
    errors are those of :func:`spike_score`.

    Example:
        >>> monitor = SpikeMonitor(window=4)
        >>> [monitor.update(loss) for loss in (1.0, 2.0, 1.0, 2.0)]
        [None, None, None, None]
        >>> monitor.update(9.0).step
        4
    """

    def __init__(
        self,
        window: int = 1000,
        sigma: float = 10.0,
        *,
        direction: str = "both",
        deviation: str = "sample",
        skip: int = 0,
        event_gap: int = EVENT_GAP,
    ) -> None:
        self.rule = SpikeRule(
            window, sigma, direction, deviation, skip, event_gap
        )
        self._past = ExactWindow(self.rule)
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
        if step < self.rule.skip:
            return None
        if not math.isfinite(value):
            return self._report(step, value)
        is_spike = self._past.is_spike(value)
        spike = self._report(step, value) if is_spike else None
        self._past.push(value)
        return spike

    def score(self) -> SpikeScore:
        """Spike score of the losses so far."""
        skipped = min(self._num_values, self.rule.skip)
        return make_score(
            self._num_values,
            skipped + len(self._past),
            self._spikes,
            self.rule.event_gap,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON-serialisable values."""
        return {
            "config": dataclasses.asdict(self.rule),
            "num_values": self._num_values,
            "window": self._past.values,
            "spikes": list(self._spikes),
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
        seen = max(0, num_values - self.rule.skip)
        least = min(self.rule.window, seen - len(spikes))
        most = min(self.rule.window, seen)
        if not least <= len(values) <= most:
            raise ValueError(
                f"the state's window holds {len(values)} values; after "
                f"{num_values} losses it holds {max(least, 0)} to {most}"
            )
        if spikes != sorted(set(spikes)) or any(
            not self.rule.skip <= spike < num_values for spike in spikes
        ):
            raise ValueError(
                f"the state's spikes must ascend within [{self.rule.skip}, "
                f"{num_values}), got {spikes}"
            )
        self._past = ExactWindow(self.rule, values)
        self._num_values = num_values
        self._spikes = spikes

    def _report(self, step: int, loss: float) -> Spike:
        starts_event = (
            not self._spikes or step - self._spikes[-1] > self.rule.event_gap
        )
        self._spikes.append(step)
        return Spike(
            step=step,
            loss=loss,
            mean=self._past.mean(),
            standard_deviation=self._past.standard_deviation(),
            starts_event=starts_event,
        )


def check_state(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse a state without the keys of a monitor's own, or its settings."""
    if missing := own.keys() - state.keys():
        raise ValueError(f"the state lacks {', '.join(sorted(missing))}")
    if state["config"] != own["config"]:
        raise ValueError(
            f"the state is of a monitor with {state['config']}, this one "
            f"has {own['config']}: make it with the same settings"
        )
