# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The one list of measures: what each is, how it is computed and printed.

The report's tables, the table of who wins, the short tables of the docs and
the stored results all follow from :func:`run_measures`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from paddle_adagc.lab.report.formatting import format_same
from paddle_adagc.lab.report.judged import (
    JudgedRun,
    judged_steps,
    last_value,
    memorises,
)
from paddle_adagc.lab.report.measure import Measure, listed, spread
from paddle_adagc.lab.report.stability_measures import (
    damage_measures,
    excess_measures,
    spike_measures,
)

_CAPTIONED = ("shapes", "image_text")
RETRIEVAL = "retrieval_accuracy"


def run_measures(
    windows: Sequence[int] = (1000, 200),
    last_steps: int = 100,
    accuracies: Sequence[str] = (RETRIEVAL,),
) -> list[Measure]:
    """List the measures.

    Args:
        windows: Windows of the spike score, steps; the first is the main one.
        last_steps: Steps at the end whose mean is the final training loss.
        accuracies: Logged metrics that are shares from 0 to 1.
    """
    measures = []
    for window in windows:
        measures += spike_measures(window, is_main=window == windows[0])
    measures += [*damage_measures(), *excess_measures(), *_losses(last_steps)]
    measures += [_accuracy(name) for name in accuracies]
    return [*measures, *_groups(), *_costs()]


def _losses(last_steps: int) -> list[Measure]:
    measure = functools.partial(
        Measure,
        group="At the end",
        form=spread(".4f"),
        better="lower",
        level="headline",
        change="+.4f",
    )
    return [
        measure(
            name="final_loss",
            label="Training loss (nat)",
            meaning=f"mean of the last {last_steps:,} steps, corrupted "
            "batches left out; NaN: one of them was not finite.",
            compute=final_loss,
        ),
        measure(
            name="validation_loss",
            label="Validation loss (nat)",
            meaning="the last evaluation on data that is not trained on; ∞: "
            "the run diverged. Not shown for a few sequences that are "
            "memorised.",
            compute=_validation_loss,
        ),
    ]


def final_loss(run: JudgedRun) -> float:
    start = run.run.num_steps - run.experiment.last_steps
    steps = judged_steps(run.run, start)
    return float(np.mean(run.run.loss[steps])) if len(steps) else math.nan


def _validation_loss(run: JudgedRun) -> float | None:
    if memorises(run.run):
        return None
    if run.diverged:
        return math.inf
    return last_value(run.run.metrics.get("eval_loss"))


def _accuracy(name: str) -> Measure:
    what = name.removesuffix("_accuracy").replace("_", " ").capitalize()
    return Measure(
        name=name,
        label=f"{what} accuracy (%)",
        meaning="the last evaluation; −∞: the run diverged.",
        compute=lambda r: _last_accuracy(r, name),
        form=spread(".1f"),
        better="higher",
        group="At the end",
        level="headline",
        change="+.1f",
    )


def _last_accuracy(run: JudgedRun, name: str) -> float | None:
    has_captions = run.config.get("data", {}).get("kind") in _CAPTIONED
    if run.diverged and name == RETRIEVAL and has_captions:
        return -math.inf
    value = last_value(run.run.metrics.get(name))
    return None if value is None else 100 * value


def _groups() -> list[Measure]:
    medians = {"h_median": ("Median h", "of all tensors")}
    for group, what in (("router", "routers"), ("experts", "routed experts")):
        for name, label in (
            ("h_median", "h"),
            ("gamma", "γ"),
            ("moment1", "first moment"),
            ("moment2", "second moment"),
        ):
            title = f"Median {label}, {what}"
            medians[f"{group}_{name}"] = (title, f"of the {what}")
    shown = {
        name: (label, f"median over the judged steps and {which}.")
        for name, (label, which) in medians.items()
    }
    shown["expert_max_violation"] = (
        "Imbalance of the experts",
        "tokens of the busiest expert over the mean, minus 1, in the worst "
        "layer: mean over the judged steps.",
    )
    shown["idle_experts"] = (
        "Idle experts",
        "mean over the judged steps of the experts without a token.",
    )
    return [
        Measure(
            name=name,
            label=label,
            meaning=meaning,
            compute=functools.partial(_of_group, name=name),
            form=spread(".3g"),
            group="Groups of tensors",
        )
        for name, (label, meaning) in shown.items()
    ]


def _of_group(run: JudgedRun, name: str) -> float | None:
    return run.groups.get(name)


def _costs() -> list[Measure]:
    measure = functools.partial(Measure, group="The run")
    return [
        measure(
            name="clipped_percent",
            label="Tensors clipped (%)",
            meaning="mean over the judged steps of the share of tensors with "
            "h < 1.",
            compute=lambda r: r.of_clip(
                "clipped_fraction", start=r.experiment.skip_steps
            ),
            form=spread(".1f"),
            level="brief",
        ),
        measure(
            name="clipped_percent_end",
            label="… over the last fifth (%)",
            meaning="the same over the last fifth of the steps.",
            compute=lambda r: r.of_clip(
                "clipped_fraction",
                start=r.run.num_steps - r.run.num_steps // 5,
            ),
            form=spread(".1f"),
        ),
        measure(
            name="clip_ms",
            label="Clip time per step (ms)",
            meaning="median over all steps of the time in the clip.",
            compute=lambda r: r.of_clip("clip_seconds", np.median),
            form=spread(".2f"),
            better="lower",
            level="brief",
        ),
        measure(
            name="step_ms",
            label="Step time (ms)",
            meaning="median over all steps of the whole step.",
            compute=lambda r: r.average("step_seconds", np.median, factor=1000),
            form=spread(".1f"),
            better="lower",
            level="brief",
        ),
        measure(
            name="wall_seconds",
            label="Wall time (s)",
            meaning="whole run, with evaluation and logging.",
            compute=lambda r: r.run.run.get("wall_seconds"),
            form=spread(".0f"),
            better="lower",
            stored=False,
        ),
        measure(
            name="steps",
            label="Steps",
            meaning="optimizer steps done.",
            compute=lambda r: r.run.num_steps,
            form=format_same,
        ),
        measure(
            name="status",
            label="Status",
            meaning="finished, diverged (stopped at a loss that was not "
            "finite) or running.",
            compute=lambda r: str(r.run.run.get("status", "unknown")),
            form=format_same,
            stored=False,
        ),
        Measure(
            name="diverged",
            label="Diverged",
            meaning="1 if the run diverged, 0 if not.",
            compute=lambda r: float(r.diverged),
            form=listed(".0f"),
            better="lower",
        ),
    ]
