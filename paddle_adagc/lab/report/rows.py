# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The rows of the comparison table: what each measure is, and its format."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.formatting import (
    format_list,
    format_same,
    format_spread,
)
from paddle_adagc.lab.report.jumps import BEFORE, SETTLED
from paddle_adagc.lab.report.measures import (
    EXCESS_THRESHOLDS,
    RunMeasures,
    scaled,
)
from paddle_adagc.stability.excess import PairedExcess

Measure = TypeVar("Measure")


@dataclasses.dataclass(frozen=True)
class RowSpec:
    """How one row of the table is computed."""

    group: str
    label: str
    meaning: str
    value: Callable[[RunMeasures], Any]
    render: Callable[[Sequence[Any]], str]


def row_specs(experiment: Experiment) -> list[RowSpec]:
    """Return the rows that make sense for ``experiment``, in order."""
    rows: list[RowSpec] = []
    for window in experiment.windows:
        rows += _spike_rows(window)
    rows += _damage_rows()
    if experiment.clean_runs:
        rows += _excess_rows()
    return rows + _loss_rows(experiment.last_steps) + _cost_rows()


def _listed(spec: str = ",") -> Callable[[Sequence[Any]], str]:
    return functools.partial(format_list, spec=spec)


def _spread(spec: str) -> Callable[[Sequence[Any]], str]:
    return functools.partial(format_spread, spec=spec)


def _spike_rows(window: int) -> list[RowSpec]:
    row = functools.partial(RowSpec, f"Spikes, window {window:,} steps")
    return [
        row(
            "Spikes",
            "judged steps whose loss is at least 10 standard deviations away "
            "from the mean of the window of judged losses before it; a loss "
            "that is not finite counts too. Not judged at all: the initial "
            "descent, and the loss of a batch that was corrupted on purpose.",
            lambda r: r.scores[window].num_spikes,
            _listed(),
        ),
        row(
            "Spike events",
            "groups of neighbouring spikes: one event can last many steps.",
            lambda r: r.scores[window].num_events,
            _listed(),
        ),
        row(
            "Spike score (%)",
            "spikes in percent of all steps but the corrupted batches: the "
            "paper's measure.",
            lambda r: r.scores[window].percent,
            _listed(".3f"),
        ),
        row(
            "Robust spikes",
            "spikes counted with the median and the median absolute deviation "
            "of the window, which an earlier event does not widen.",
            lambda r: r.robust[window].num_spikes,
            _listed(),
        ),
        row(
            "10 σ (nat)",
            "how far the loss had to be from its mean to count as a spike: the "
            "median over the judged steps. Smaller damage scores 0.",
            lambda r: r.ten_sigma[window],
            _spread(".2f"),
        ),
        row(
            "Steps not judged",
            "the skipped ones, and those without a full window before them.",
            lambda r: r.scores[window].num_unjudged,
            format_same,
        ),
    ]


def _damage_rows() -> list[RowSpec]:
    row = functools.partial(RowSpec, "Damage to the loss")
    return [
        row(
            "Worst loss jump (nat)",
            f"largest rise of the loss over the median of the {BEFORE} judged "
            "losses before it; ∞: the loss was not finite.",
            lambda r: r.jump.height if r.jump else None,
            _listed(".3f"),
        ),
        row(
            "… at step",
            "the step of the worst loss jump, counted from 0.",
            lambda r: r.jump.step if r.jump else None,
            _listed(),
        ),
        row(
            "Steps to recover",
            "steps from the worst jump until the median of "
            f"{SETTLED} losses in a row is back at the level before it, within "
            "two robust deviations; never: not before the run ended.",
            lambda r: _steps_or_never(r.jump, lambda j: j.recovery_steps),
            " / ".join,
        ),
    ]


def _excess_rows() -> list[RowSpec]:
    row = functools.partial(RowSpec, "Excess over the same run without faults")
    events = [
        row(
            f"Events above {threshold} nat",
            "times the loss exceeded that of the paired run (same method, seed "
            f"and batches, no faults) by more than {threshold} nat; steps "
            "close together are one event.",
            _num_excess_events(threshold),
            _listed(),
        )
        for threshold in EXCESS_THRESHOLDS
    ]
    return [
        *events,
        row(
            "Area (nat × steps)",
            "sum of the excess from the first fault on; batch noise cancels.",
            _of_excess(lambda e: e.area),
            _spread(".1f"),
        ),
        row(
            "Largest excess (nat)",
            "at a single step, corrupted batches left out.",
            _of_excess(lambda e: e.worst),
            _spread(".3f"),
        ),
        row(
            "Steps until it is gone",
            "the longest over all faults until the mean excess of 10 steps "
            "stays below 0.1 nat; never: not before the next fault or the end.",
            lambda r: _steps_or_never(r.excess, lambda e: e.steps_to_recover),
            " / ".join,
        ),
        row(
            "Difference before (nat)",
            "largest difference of the two losses before the first fault: 0 "
            "if the runs are really paired.",
            _of_excess(lambda e: e.difference_before),
            _listed(".2g"),
        ),
    ]


def _of_excess(
    value: Callable[[PairedExcess], float],
) -> Callable[[RunMeasures], float | None]:
    return lambda run: None if run.excess is None else value(run.excess)


def _num_excess_events(
    threshold: float,
) -> Callable[[RunMeasures], float | None]:
    return _of_excess(lambda excess: excess.num_events[threshold])


def _steps_or_never(
    measure: Measure | None, value: Callable[[Measure], int | None]
) -> str:
    if measure is None:
        return "–"
    steps = value(measure)
    return "never" if steps is None else f"{steps:,}"


def _loss_rows(last_steps: int) -> list[RowSpec]:
    row = functools.partial(RowSpec, "Loss at the end")
    return [
        row(
            "Training loss (nat)",
            f"mean of the last {last_steps:,} steps, corrupted batches left "
            "out; NaN: one of them was not finite.",
            lambda r: r.final_loss,
            _spread(".4f"),
        ),
        row(
            "Validation loss (nat)",
            "the last evaluation on text that is not trained on.",
            lambda r: r.validation_loss,
            _spread(".4f"),
        ),
    ]


def _cost_rows() -> list[RowSpec]:
    row = functools.partial(RowSpec, "The run")
    return [
        row(
            "Tensors clipped (%)",
            "mean over the judged steps of the share of tensors with h < 1.",
            lambda r: scaled(r.clipped_fraction, 100),
            _spread(".1f"),
        ),
        row(
            "Clip time per step (ms)",
            "median over all steps of the time in the clip.",
            lambda r: scaled(r.clip_seconds, 1000),
            _spread(".2f"),
        ),
        row(
            "Step time (ms)",
            "median over all steps of the whole step.",
            lambda r: scaled(r.step_seconds, 1000),
            _spread(".1f"),
        ),
        row(
            "Wall time (s)",
            "whole run, with evaluation and logging.",
            lambda r: r.wall_seconds,
            _spread(".0f"),
        ),
        row(
            "Steps",
            "optimizer steps done.",
            lambda r: r.num_steps,
            format_same,
        ),
        row(
            "Status",
            "finished, diverged (stopped at a loss that was not finite) or "
            "running.",
            lambda r: r.status,
            format_same,
        ),
    ]
