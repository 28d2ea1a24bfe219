# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Alarms of a run, and whether its weights are finite."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import paddle
from paddle import Tensor

from paddle_adagc.lab.train.processes import (
    from_first_process,
    mean_over_processes,
)
from paddle_adagc.stability.alarms import Alarm, Monitor

logger = logging.getLogger(__name__)
_FROM_ROWS = ("loss", "global_grad_norm", "clipped_fraction", "step_seconds")


class Watcher:
    """Hand the record's rows to a :class:`Monitor`, and ask it whether to stop.

    Args:
        stop_on: Series whose alarm ends the run.

    Attributes:
        stopped_by: First alarm that ends the run, the same on every process.
    """

    def __init__(self, stop_on: Sequence[str] = ()) -> None:
        self.stopped_by: Alarm | None = None
        self._stop_on = stop_on
        self._monitor = Monitor()
        self._gammas: dict[str, float] = {}
        self._changes: dict[int, float] = {}
        self._earlier_total = self._last_total = 0

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """All alarms of the run as JSON values."""
        return [dataclasses.asdict(alarm) for alarm in self._monitor.alarms]

    def see_gammas(self, step: int, gammas: Mapping[str, float]) -> None:
        """Compare a step's gammas with those seen last.

        Args:
            step: The step.
            gammas: By tensor; not finite where a tensor has none.
        """
        known = {k: x for k, x in gammas.items() if 0 < x < math.inf}
        if changes := [
            abs(math.log(x / self._gammas[key]))
            for key, x in known.items()
            if key in self._gammas
        ]:
            self._changes[step] = max(changes)
        self._gammas |= known

    def whole_total(self, total: int) -> int:
        """Return ``nonfinite_total`` with what earlier processes counted.

        Args:
            total: What this process counted.
        """
        return self._earlier_total + total

    def watch(
        self, rows: Iterable[dict[str, Any]], *, every_step: bool
    ) -> list[Alarm]:
        """Judge rows; add ``alarms`` to those in which an event begins.

        Every process calls this; what the first one finds counts.

        Args:
            rows: Of the record, in order, without numbers on the device.
            every_step: Every row has the clip's numbers, not only logged ones.

        Returns:
            The events that began.
        """
        by_step = {row["step"]: row for row in rows}
        found = self._monitor.update(
            (step, self._values(row, every_step))
            for step, row in by_step.items()
        )
        begun = from_first_process(lambda: found)
        for alarm in begun:
            values = dataclasses.asdict(alarm)
            by_step[alarm.start].setdefault("alarms", []).append(values)
        if self.stopped_by is None:
            ending = (alarm for alarm in begun if alarm.series in self._stop_on)
            self.stopped_by = next(ending, None)
        return begun

    def _values(
        self, row: Mapping[str, Any], every_step: bool
    ) -> dict[str, float]:
        values = {name: row[name] for name in _FROM_ROWS if name in row}
        total = row.get("nonfinite_total", self._last_total)
        if every_step and "nonfinite" in row:
            values["nonfinite"] = row["nonfinite"]
        elif "nonfinite_total" in row:
            values["nonfinite"] = total - self._last_total
        self._last_total = total
        if row["step"] in self._changes:
            values["gamma_change"] = self._changes.pop(row["step"])
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON values."""
        return {
            "monitor": self._monitor.state_dict(),
            "nonfinite_total": self._last_total,
            "gammas": self._gammas,
        }

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume; alarms of a version with other rules start afresh."""
        try:
            self._monitor.set_state_dict(state["monitor"])
        except ValueError as error:
            logger.warning("alarms start afresh: %s", error)
        self._earlier_total = self._last_total = state["nonfinite_total"]
        self._gammas = dict(state["gammas"])


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Tell whether all tensors are finite on every process, which calls this.

    Reads the device once.
    """
    flags = [paddle.isfinite(tensor).all() for tensor in tensors]
    finite = not flags or bool(paddle.stack(flags).all())
    return mean_over_processes([float(finite)]) == [1.0]
