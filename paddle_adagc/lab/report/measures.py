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
"""The numbers of the report, run by run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.jumps import Jump, judged_steps, worst_jump
from paddle_adagc.stability.excess import PairedExcess, paired_excess
from paddle_adagc.stability.spike_score import (
    SpikeScore,
    robust_spike_score,
    spike_score,
)

SIGMA = 10.0
"""Standard deviations that make a spike (paper, Section 5)."""

EXCESS_THRESHOLDS = (0.2, 0.5)
"""Paired excess above which an event counts, nat."""


@dataclasses.dataclass(frozen=True)
class RunMeasures:
    """What the table says about one run; ``None`` where nothing was logged."""

    status: str
    num_steps: int
    scores: dict[int, SpikeScore]
    """Spike score by window, over the series without corrupted batches."""

    robust: dict[int, SpikeScore]
    """Robust spike score by window, over the same series."""

    ten_sigma: dict[int, float | None]
    """Median over the judged steps of 10 standard deviations, nat."""

    jump: Jump | None
    excess: PairedExcess | None
    """Against the same run without faults; ``None`` without such a run or
    without faults."""

    final_loss: float
    """Mean training loss of the last steps, corrupted batches left out; NaN if
    one of them is not finite."""

    validation_loss: float | None
    """Last validation loss."""

    clipped_fraction: float | None
    """Mean fraction of the tensors that were clipped, over judged steps; None,
    like the clip's time, where the optimizer clips by itself."""

    clipped_fraction_end: float | None
    """The same over the last fifth of the steps."""

    clip_seconds: float | None
    """Median time of the clip in a step, seconds."""

    step_seconds: float | None
    """Median time of a whole step, seconds."""

    wall_seconds: float | None


def measure_experiment(experiment: Experiment) -> dict[str, list[RunMeasures]]:
    """Measure every run; by method, one entry per seed."""
    return {
        method: [
            measure_run(run, experiment, clean)
            for run, clean in zip(runs, _clean(experiment, method), strict=True)
        ]
        for method, runs in experiment.runs.items()
    }


def measure_run(
    run: RunRecord, experiment: Experiment, clean: RunRecord | None = None
) -> RunMeasures:
    """Measure ``run`` with the settings of ``experiment``.

    Args:
        run: The run.
        experiment: Gives the steps to skip and the windows.
        clean: The same run without faults, for the paired excess.
    """
    skip = experiment.skip_steps
    series, skipped = _scored_series(run, skip)
    windows = experiment.windows
    clipped = clip_seconds = None
    if run.run.get("config", {}).get("clip", {}).get("name") != "none":
        clipped = run.metrics.get("clipped_fraction")
        clip_seconds = run.metrics.get("clip_seconds")
    return RunMeasures(
        status=str(run.run.get("status", "unknown")),
        num_steps=run.num_steps,
        scores={
            w: spike_score(series, w, SIGMA, skip=skipped) for w in windows
        },
        robust={
            w: robust_spike_score(series, w, SIGMA, skip=skipped)
            for w in windows
        },
        ten_sigma={w: _ten_sigma(series[skipped:], w) for w in windows},
        jump=worst_jump(run, skip),
        excess=None if clean is None else _excess(run, clean),
        final_loss=_final_loss(run, experiment.last_steps),
        validation_loss=last_value(run.metrics.get("eval_loss")),
        clipped_fraction=_average(clipped, np.mean, skip),
        clipped_fraction_end=_average(
            clipped, np.mean, run.num_steps - run.num_steps // 5
        ),
        clip_seconds=_average(clip_seconds, np.median),
        step_seconds=_average(run.metrics.get("step_seconds"), np.median),
        wall_seconds=run.run.get("wall_seconds"),
    )


def spike_steps(run: RunRecord, skip_steps: int, window: int) -> np.ndarray:
    """Return the steps whose loss is a spike, ``[num_spikes]`` int64."""
    series, skipped = _scored_series(run, skip_steps)
    score = spike_score(series, window, SIGMA, skip=skipped)
    return judged_steps(run, 0)[score.indices]


def _clean(experiment: Experiment, method: str) -> Sequence[RunRecord | None]:
    clean = (experiment.clean_runs or {}).get(method)
    return clean or [None] * len(experiment.seeds)


def _excess(run: RunRecord, clean: RunRecord) -> PairedExcess | None:
    """Compare over the steps of both; a diverged run is infinitely above."""
    num_steps = min(run.num_steps, clean.num_steps)
    losses = run.loss[:num_steps]
    has_diverged = run.run.get("status") == "diverged"
    if run.num_steps < clean.num_steps and has_diverged:
        num_steps = clean.num_steps
        losses = np.pad(
            losses, (0, num_steps - len(losses)), constant_values=np.nan
        )
    fault_steps = [step for step in run.faults if step < num_steps]
    if not fault_steps:
        return None
    return paired_excess(
        losses,
        clean.loss[:num_steps],
        fault_steps,
        exclude_steps=set(fault_steps) - set(judged_steps(run, 0)),
        thresholds=EXCESS_THRESHOLDS,
    )


def _scored_series(run: RunRecord, skip_steps: int) -> tuple[np.ndarray, int]:
    """Losses without corrupted batches, and how many of them to skip."""
    steps = judged_steps(run, 0)
    return run.loss[steps], int(np.count_nonzero(steps < skip_steps))


def _ten_sigma(series: np.ndarray, window: int) -> float | None:
    finite = series[np.isfinite(series)]
    if len(finite) <= window:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(finite, window)[:-1]
    return float(SIGMA * np.median(windows.std(axis=1, ddof=1)))


def _final_loss(run: RunRecord, last_steps: int) -> float:
    steps = judged_steps(run, run.num_steps - last_steps)
    return float(np.mean(run.loss[steps])) if len(steps) else math.nan


def last_value(values: np.ndarray | None) -> float | None:
    """The last of a series that has not a value at every step."""
    known = np.zeros(0) if values is None else values[~np.isnan(values)]
    return float(known[-1]) if len(known) else None


def _average(
    values: np.ndarray | None,
    average: Callable[[np.ndarray], np.floating],
    skip: int = 0,
) -> float | None:
    known = np.zeros(0) if values is None else values[skip:]
    known = known[~np.isnan(known)]
    return float(average(known)) if len(known) else None


def scaled(value: float | None, factor: float) -> float | None:
    """``factor * value``, or None where there is no value."""
    return None if value is None else factor * value
