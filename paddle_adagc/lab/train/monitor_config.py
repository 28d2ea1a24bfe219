# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run does at alarms and outliers, as typed settings."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from pydantic import model_validator
from typing_extensions import Self

from paddle_adagc.lab.section import Count, Flag, Natural, Positive, section

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

    rollback_on: list[Series] = dataclasses.field(default_factory=list)
    """Series whose alarm takes the run back to its newest checkpoint before the
    event; it resumes without the event's samples."""

    skip_before: Natural = 10
    """Steps before the event whose samples a rollback skips, too."""

    max_rollbacks: Count = 3
    """After so many rollbacks of the run such an alarm ends it."""

    skip_step: Flag = False
    """Leave out the update of an outlier step: loss or gradient norm above
    mean plus ``skip_sigma`` standard deviations of the last 128 steps, from 64
    steps on and after the clip's warm-up. Decided on the device."""

    skip_sigma: Positive = 6.0
    """Standard deviations above the mean that make an outlier."""

    flight_steps: Natural = 200
    """Last steps that every rank keeps in memory and writes to
    ``output_dir/flight`` at an alarm, a signal or an exception; 0: none."""

    @model_validator(mode="after")
    def _check_reactions(self) -> Self:
        if both := sorted({*self.stop_on} & {*self.rollback_on}):
            raise ValueError(
                f"stop_on and rollback_on both name {', '.join(both)}: a run "
                "can react in one way"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain values of the fields that differ from their defaults."""
        mine, defaults = map(dataclasses.asdict, (self, MonitorConfig()))
        return {k: v for k, v in mine.items() if v != defaults[k]}
