# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures of stability: spikes, damage and excess of the loss."""

from __future__ import annotations

import functools
import math

import numpy as np

from paddle_adagc.lab.report.formatting import Value, format_same, format_steps
from paddle_adagc.lab.report.judged import (
    BEFORE,
    EXCESS_THRESHOLDS,
    GROWTH_STEPS,
    SETTLED,
    SIGMA,
    JudgedRun,
    moment_growth,
    scored_series,
)
from paddle_adagc.lab.report.measure import (
    Level,
    Measure,
    listed,
    ranged,
    spread,
)


def spike_measures(window: int, is_main: bool) -> list[Measure]:
    """List the counts of spikes with one window, steps."""
    measure = functools.partial(
        Measure,
        group=f"Spikes, window {window:,} steps",
        qualifier=f"window {window:,}",
        form=listed(),
    )
    brief: Level = "brief" if is_main else "detail"
    return [
        measure(
            name=f"spikes_{window}",
            label="Spikes",
            meaning="judged steps whose loss is at least 10 standard "
            "deviations away from the mean of the window of judged losses "
            "before it; a loss that is not finite counts too. Not judged: the "
            "initial descent, and the loss of a batch that was corrupted on "
            "purpose. A run that diverged has at least one.",
            compute=lambda r: _at_least_one(r, window, "num_spikes"),
            better="lower",
            level=brief,
        ),
        measure(
            name=f"events_{window}",
            label="Spike events",
            meaning="groups of neighbouring spikes: one event can last many "
            "steps. A run that diverged has at least one.",
            compute=lambda r: _at_least_one(r, window, "num_events"),
            better="lower",
            level="headline",
        ),
        measure(
            name=f"score_{window}",
            label="Spike score (%)",
            meaning="spikes in percent of all steps but the corrupted "
            "batches: the paper's measure.",
            compute=lambda r: _of(r.score(window), "percent"),
            form=spread(".3f"),
            better="lower",
            level=brief,
        ),
        measure(
            name=f"robust_spikes_{window}",
            label="Robust spikes",
            meaning="spikes counted with the median and the median absolute "
            "deviation of the window, which an earlier event does not widen.",
            compute=lambda r: _of(r.score(window, robust=True), "num_spikes"),
            better="lower",
        ),
        measure(
            name=f"ten_sigma_{window}",
            label="10 σ (nat)",
            meaning="how far the loss had to be from its mean to count as a "
            "spike: the median over the judged steps. Smaller damage scores 0.",
            compute=lambda r: _ten_sigma(r, window),
            form=spread(".2f"),
        ),
        measure(
            name=f"judged_{window}",
            label="Judged steps",
            meaning="steps after the skipped ones that have a full window "
            "before them; – where there is none: no spike could be seen.",
            compute=lambda r: _at_least_one(r, window, "num_judged"),
            form=format_same,
        ),
    ]


def _at_least_one(run: JudgedRun, window: int, name: str) -> float | None:
    """Return a count; at least the step at which a run diverged."""
    score = run.score(window)
    if score is None:
        return 1 if run.diverged else None
    return max(getattr(score, name), int(run.diverged))


def _ten_sigma(run: JudgedRun, window: int) -> float | None:
    """Median over the windows of 10 standard deviations, nat."""
    series, skip = scored_series(run.run, run.experiment.skip_steps)
    finite = series[skip:][np.isfinite(series[skip:])]
    if run.score(window) is None or len(finite) <= window:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(finite, window)[:-1]
    return float(SIGMA * np.median(windows.std(axis=1, ddof=1)))


def _of(found: object | None, name: str) -> Value:
    """Return an attribute of ``found``; None if nothing was found."""
    return None if found is None else getattr(found, name)


def _or_never(found: object | None, name: str) -> Value:
    """Like :func:`_of`; infinite where the attribute is None."""
    if found is None:
        return None
    steps = getattr(found, name)
    return math.inf if steps is None else steps


def damage_measures() -> list[Measure]:
    """List jumps of the loss and growths of AdamW's moments."""
    measure = functools.partial(Measure, group="Damage to the loss")
    return [
        measure(
            name="worst_jump",
            label="Worst loss jump (nat)",
            meaning="largest rise of the loss over the median of the "
            f"{BEFORE} judged losses before it; ∞: the loss was not finite.",
            compute=lambda r: _of(r.jump, "height"),
            form=ranged(".3f"),
            better="lower",
            level="headline",
        ),
        measure(
            name="worst_jump_step",
            label="… at step",
            meaning="the step of the worst loss jump, counted from 0.",
            compute=lambda r: _of(r.jump, "step"),
            form=listed(),
            stored=False,
        ),
        measure(
            name="worst_jump_recovery",
            label="Steps to recover",
            meaning="steps from the worst jump until the median of "
            f"{SETTLED} losses in a row is back at the level before it, "
            "within two robust deviations; never: not before the run ended.",
            compute=lambda r: _or_never(r.jump, "recovery_steps"),
            form=format_steps,
            better="lower",
            stored=False,
        ),
        *(
            measure(
                name=f"moment{order}_growth",
                label=f"Growth of a {name} moment (×)",
                meaning=f"largest factor by which the norm of a tensor's "
                f"{name} moment grew within {GROWTH_STEPS} steps.",
                compute=functools.partial(_growth, name=f"moment{order}"),
                form=ranged(".1f"),
                level="brief" if order == 1 else "detail",
            )
            for order, name in ((1, "first"), (2, "second"))
        ),
    ]


def _growth(run: JudgedRun, name: str) -> float | None:
    return moment_growth(run.run.tensors[name], run.experiment.skip_steps)


def excess_measures() -> list[Measure]:
    """List what the loss exceeds that of the run without faults by."""
    measure = functools.partial(
        Measure, group="Excess over the same run without faults"
    )
    return [
        *(
            measure(
                name=f"events_above_{threshold}",
                label=f"Excess events above {threshold} nat",
                meaning="times the loss exceeded that of the paired run (same "
                "method, seed and batches, no faults) by more than "
                f"{threshold} nat; an event ends when the excess stays below "
                f"{min(EXCESS_THRESHOLDS)} nat for more than 10 steps.",
                compute=functools.partial(_excess_events, threshold=threshold),
                form=listed(),
                better="lower",
                level=(
                    "headline"
                    if threshold == max(EXCESS_THRESHOLDS)
                    else "detail"
                ),
            )
            for threshold in EXCESS_THRESHOLDS
        ),
        measure(
            name="excess_area",
            label="Excess area (nat × steps)",
            meaning="sum of the excess from the first fault on; batch noise "
            "cancels.",
            compute=lambda r: _of(r.excess, "area"),
            form=spread(".1f"),
            better="lower",
            level="headline",
            change="+.1f",
        ),
        measure(
            name="excess_worst",
            label="Largest excess (nat)",
            meaning="at a single step, corrupted batches left out.",
            compute=lambda r: _of(r.excess, "worst"),
            form=ranged(".2f"),
            better="lower",
            level="brief",
        ),
        measure(
            name="excess_recovery",
            label="Steps until it is gone",
            meaning="the longest over all faults until the mean excess of 10 "
            "steps stays below 0.1 nat; never: not before the next fault or "
            "the end.",
            compute=lambda r: _or_never(r.excess, "steps_to_recover"),
            form=format_steps,
            better="lower",
            stored=False,
        ),
        measure(
            name="excess_difference_before",
            label="Difference before (nat)",
            meaning="largest difference of the two losses before the first "
            "fault: 0 if the runs are really paired.",
            compute=lambda r: _of(r.excess, "difference_before"),
            form=listed(".2g"),
            stored=False,
        ),
    ]


def _excess_events(run: JudgedRun, threshold: float) -> float | None:
    return None if run.excess is None else run.excess.num_events[threshold]
