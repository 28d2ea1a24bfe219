# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run as it is judged: without corrupted batches and the initial descent."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import median_filter

from adagc_lab.record.files import RunRecord
from adagc_lab.report.excess import PairedExcess, paired_excess
from adagc_lab.report.experiment import Experiment
from paddle_adagc.spikes import SpikeScore, spike_score

SIGMA = 10.0
"""Standard deviations that make a spike (paper, Section 5)."""

GROWTH_STEPS = 20
"""Steps over which the growth of a moment is measured."""

BEFORE = 50
"""Steps before a step whose median is the level that it jumps from."""

MASS_WINDOW = 101
"""Losses, and then distances, before a step that its spike mass refers to."""


class Jump(NamedTuple):
    """The rise of the loss at one step over its level just before."""

    height: float
    """Loss minus the median of the :data:`BEFORE` judged losses before, nat;
    infinite where the loss is not finite."""

    step: int


@dataclasses.dataclass(frozen=True)
class JudgedRun:
    """A run with the settings it is judged by, corrupted batches left out."""

    run: RunRecord
    experiment: Experiment
    clean: RunRecord | None = None
    """The same run without faults, for the paired excess."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The run's config."""
        return self.run.run.get("config", {})

    @property
    def diverged(self) -> bool:
        """Whether the run stopped at a loss that was not finite."""
        return self.run.run.get("status") == "diverged"

    @functools.cached_property
    def series(self) -> tuple[np.ndarray, int]:
        """The losses of uncorrupted batches, and how many to skip."""
        steps = judged_steps(self.run, 0)
        skip = np.count_nonzero(steps < self.experiment.skip_steps)
        return self.run.loss[steps], int(skip)

    def score(self, window: int) -> SpikeScore | None:
        """The spike score; None where no step was judged."""
        score = self._scores[window]
        is_judged = score.num_judged > 0 and not self.diverged
        return score if score.num_spikes or is_judged else None

    @functools.cached_property
    def _scores(self) -> dict[int, SpikeScore]:
        series, skip = self.series
        return {
            window: spike_score(series, window, SIGMA, skip=skip)
            for window in self.experiment.windows
        }

    @functools.cached_property
    def jump(self) -> Jump | None:
        """The largest rise of the loss."""
        return worst_jump(self.run, self.experiment.skip_steps)

    @functools.cached_property
    def excess(self) -> PairedExcess | None:
        """Loss above that of ``clean``, infinite once the run diverged."""
        run, clean = self.run, self.clean.loss if self.clean else None
        left_out = {*run.faults} - {*judged_steps(run, 0).tolist()}
        return paired_excess(
            run.loss, clean, run.faults, left_out, self.diverged
        )

    def logged(self, name: str, start: int = 0) -> np.ndarray:
        """Known values of a metric; none of a clip in the optimizer itself."""
        is_clipless = self.config.get("clip", {}).get("name") == "none"
        values = self.run.metrics.get(name, np.zeros(0))[start:]
        if is_clipless and name in ("clip_seconds", "clipped_fraction"):
            return np.zeros(0)
        return values[~np.isnan(values)]

    def clipped_percent(self, start: int) -> float | None:
        """Mean share of clipped tensors from a step on; None: not logged."""
        shares = self.logged("clipped_fraction", start)
        return 100 * float(np.mean(shares)) if len(shares) else None

    def median_ms(self, name: str) -> float | None:
        """Median of a logged time, in milliseconds; None: not logged."""
        seconds = self.logged(name)
        return 1000 * float(np.median(seconds)) if len(seconds) else None

    def last(self, name: str) -> float | None:
        """The last known value of a metric."""
        known = self.logged(name)
        return float(known[-1]) if len(known) else None


def spike_mass(losses: np.ndarray) -> float | None:
    """Loss above the running median plus 5 MAD, summed, in nat x steps.

    ``losses`` are the judged ones, ``[num_steps]``. The median is of the
    :data:`MASS_WINDOW` losses before, the MAD of as many distances to it
    before. Unlike a spike of 10 deviations a lasting disturbance does not hide
    itself. None: too short; infinite: a loss is not finite.
    """
    if not np.isfinite(losses).all():
        return math.inf
    if len(losses) <= 2 * MASS_WINDOW:
        return None
    rise = losses[MASS_WINDOW:] - _medians_before(losses)
    above = rise[MASS_WINDOW:] - 5 * _medians_before(np.abs(rise))
    return float(above[above > 0].sum())


def _medians_before(values: np.ndarray) -> np.ndarray:
    """Median of the window before each value from ``MASS_WINDOW`` on."""
    half = MASS_WINDOW // 2
    centred = median_filter(values, MASS_WINDOW)
    medians: np.ndarray = centred[half : len(values) - half - 1]
    return medians


def judge_runs(experiment: Experiment) -> dict[str, list[JudgedRun]]:
    """The runs of an experiment by method, each with its clean twin."""
    return {
        method: [
            JudgedRun(run, experiment, twin)
            for run, twin in itertools.zip_longest(
                runs, experiment.clean_runs.get(method, ())
            )
        ]
        for method, runs in experiment.runs.items()
    }


def memorises(run: RunRecord) -> bool:
    """Whether a run trains on a few sequences: validation says nothing."""
    data = run.run.get("config", {}).get("data", {})
    return data.get("kind") == "fixed_sequences"


def moment_growth(norms: np.ndarray, skip_steps: int) -> float | None:
    """The largest growth in :data:`GROWTH_STEPS` judged steps, NaN left out."""
    judged = norms[skip_steps:].astype(np.float64)
    if len(judged) <= GROWTH_STEPS or not judged.shape[1]:
        return None
    with np.errstate(all="ignore"):
        growth = judged[GROWTH_STEPS:] / judged[:-GROWTH_STEPS]
    known = growth[np.isfinite(growth)]
    return float(known.max()) if known.size else None


def judged_steps(run: RunRecord, skip_steps: int) -> np.ndarray:
    """Return the steps whose loss says something about the model, increasing.

    Left out are the first ``skip_steps`` and the steps whose batch was
    corrupted: their own loss is computed from the corruption, whatever the
    state of the model. A gradient fault shows one step later.
    """
    judged = np.arange(run.num_steps) >= skip_steps
    for step, faults in run.faults.items():
        if not all(fault["kind"].startswith("gradient") for fault in faults):
            judged[step] = False
    return np.flatnonzero(judged)


def model_loss(run: RunRecord) -> np.ndarray:
    """Return the loss, ``[num_steps]``, NaN where the batch was corrupted."""
    loss = np.full(run.num_steps, np.nan)
    steps = judged_steps(run, 0)
    loss[steps] = run.loss[steps]
    return loss


def worst_jump(
    run: RunRecord, skip_steps: int, between: tuple[int, int] | None = None
) -> Jump | None:
    """Find the largest jump among the judged steps.

    Only the steps ``between[0] <= step < between[1]`` are looked at. None: no
    step has :data:`BEFORE` judged steps before it.
    """
    steps = judged_steps(run, skip_steps)
    if len(steps) <= BEFORE:
        return None
    loss = run.loss[steps]
    with np.errstate(all="ignore"):
        windows = np.lib.stride_tricks.sliding_window_view(loss, BEFORE)[:-1]
        level = np.median(np.where(np.isfinite(windows), windows, np.inf), 1)
        height = loss[BEFORE:] - level
    height[~np.isfinite(loss[BEFORE:])] = np.inf
    height[np.isnan(height) | ~np.isfinite(level)] = -np.inf
    candidates = steps[BEFORE:]
    if between is not None:
        inside = (candidates >= between[0]) & (candidates < between[1])
        height = np.where(inside, height, -np.inf)
    best = int(np.argmax(height))
    if height[best] == -np.inf:
        return None
    return Jump(float(height[best]), int(candidates[best]))
