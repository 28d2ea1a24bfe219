# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run does at alarms, as typed settings."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from paddle_adagc.lab.section import Natural, section

Series = Literal[
    "loss",
    "global_grad_norm",
    "clipped_fraction",
    "gamma_change",
    "nonfinite",
    "step_seconds",
]


@section
class MonitorConfig:
    """Reactions to the run's alarms, which are logged in any case."""

    stop_on: list[Series] = dataclasses.field(default_factory=list)
    """Series (:data:`paddle_adagc.stability.alarms.WATCHES`) whose alarm ends
    the run at the next log, without a checkpoint of the steps since."""

    flight_steps: Natural = 200
    """Last steps that every rank keeps in memory and writes to
    ``output_dir/flight`` at an alarm, a signal or an exception; 0: none."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values of the fields that differ from their defaults."""
        mine, defaults = map(dataclasses.asdict, (self, MonitorConfig()))
        return {k: v for k, v in mine.items() if v != defaults[k]}
