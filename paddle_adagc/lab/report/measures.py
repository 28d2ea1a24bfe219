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
"""The one list of measures: what each is, how it is computed and printed.

The report's tables, the table of who wins, the short tables of the docs and
the stored results all follow from :func:`run_measures`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from paddle_adagc.lab.report.formatting import (
    Value,
    format_list,
    format_same,
    format_spread,
    format_steps,
)
from paddle_adagc.lab.report.judged import (
    BEFORE,
    EXCESS_THRESHOLDS,
    GROWTH_STEPS,
    SETTLED,
    SIGMA,
    JudgedRun,
    judged_steps,
    last_value,
    memorises,
    moment_growth,
    scored_series,
)

_CAPTIONED = ("shapes", "image_text")
RETRIEVAL = "retrieval_accuracy"
_Level = Literal["detail", "brief", "headline"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of a run, and everything that tables say about it."""

    name: str
    """Its key in the stored results, for example ``"events_1000"``."""

    label: str
    """What tables call it, with the unit in parentheses."""

    meaning: str
    """What it is, in a sentence."""

    compute: Callable[[JudgedRun], Value]
    """None where it cannot be measured."""

    form: Callable[[Sequence[Value]], str]
    """Formats one value per seed as a cell."""

    better: Literal["lower", "higher"] | None = None
    """The direction that is better, None if neither is."""

    group: str = ""
    """Heading in the report's table; without one it is not in the table."""

    qualifier: str = ""
    """What tables without the group's heading add to the label."""

    level: _Level = "detail"
    """``"brief"``: in the docs' short tables, too; ``"headline"``: also in the
    table of who wins."""

    change: str | None = None
    """Format of the paired difference, where short tables show it."""

    stored: bool = True
    """Whether it is one of the stored results."""

    @property
    def title(self) -> str:
        """The label with its qualifier."""
        return ", ".join(filter(None, (self.label, self.qualifier)))


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
        measures += _spikes(window, is_main=window == windows[0])
    measures += [*_damage(), *_excess(), *_losses(last_steps)]
    measures += [_accuracy(name) for name in accuracies]
    return [*measures, *_groups(), *_costs()]


def _listed(spec: str = ",.0f") -> Callable[[Sequence[Value]], str]:
    return functools.partial(format_list, spec=spec)


def _spread(spec: str) -> Callable[[Sequence[Value]], str]:
    return functools.partial(format_spread, spec=spec)


def _spikes(window: int, is_main: bool) -> list[Measure]:
    measure = functools.partial(
        Measure,
        group=f"Spikes, window {window:,} steps",
        qualifier=f"window {window:,}",
        form=_listed(),
    )
    brief: _Level = "brief" if is_main else "detail"
    return [
        measure(
            name=f"spikes_{window}",
            label="Spikes",
            meaning="judged steps whose loss is at least 10 standard "
            "deviations away from the mean of the window of judged losses "
            "before it; a loss that is not finite counts too. Not judged: the "
            "initial descent, and the loss of a batch that was corrupted on "
            "purpose. A run that diverged has at least one.",
            compute=lambda r: _num_spikes(r, window),
            better="lower",
            level=brief,
        ),
        measure(
            name=f"events_{window}",
            label="Spike events",
            meaning="groups of neighbouring spikes: one event can last many "
            "steps. A run that diverged has at least one.",
            compute=lambda r: _num_events(r, window),
            better="lower",
            level="headline",
        ),
        measure(
            name=f"score_{window}",
            label="Spike score (%)",
            meaning="spikes in percent of all steps but the corrupted "
            "batches: the paper's measure.",
            compute=lambda r: _of(r.score(window), "percent"),
            form=_spread(".3f"),
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
            form=_spread(".2f"),
        ),
        measure(
            name=f"judged_{window}",
            label="Judged steps",
            meaning="steps after the skipped ones that have a full window "
            "before them; – where there is none: no spike could be seen.",
            compute=lambda r: _num_judged(r, window),
            form=format_same,
        ),
    ]


def _num_spikes(run: JudgedRun, window: int) -> float | None:
    score = run.score(window)
    if score is None:
        return 1 if run.diverged else None
    return score.num_spikes


def _num_events(run: JudgedRun, window: int) -> float | None:
    score = run.score(window)
    if score is None:
        return 1 if run.diverged else None
    return score.num_events


def _num_judged(run: JudgedRun, window: int) -> float | None:
    """At least the step at which a run diverged."""
    score = run.score(window)
    if score is None:
        return 1 if run.diverged else None
    return max(score.num_values - score.num_unjudged, run.diverged)


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


def _damage() -> list[Measure]:
    measure = functools.partial(Measure, group="Damage to the loss")
    return [
        measure(
            name="worst_jump",
            label="Worst loss jump (nat)",
            meaning="largest rise of the loss over the median of the "
            f"{BEFORE} judged losses before it; ∞: the loss was not finite.",
            compute=lambda r: _of(r.jump, "height"),
            form=_listed(".3f"),
            better="lower",
            level="headline",
        ),
        measure(
            name="worst_jump_step",
            label="… at step",
            meaning="the step of the worst loss jump, counted from 0.",
            compute=lambda r: _of(r.jump, "step"),
            form=_listed(),
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
                form=_listed(".1f"),
                level="brief" if order == 1 else "detail",
            )
            for order, name in ((1, "first"), (2, "second"))
        ),
    ]


def _growth(run: JudgedRun, name: str) -> float | None:
    return moment_growth(run.run.tensors[name], run.experiment.skip_steps)


def _excess() -> list[Measure]:
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
                form=_listed(),
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
            form=_spread(".1f"),
            better="lower",
            level="headline",
            change="+.1f",
        ),
        measure(
            name="excess_worst",
            label="Largest excess (nat)",
            meaning="at a single step, corrupted batches left out.",
            compute=lambda r: _of(r.excess, "worst"),
            form=_listed(".2f"),
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
            form=_listed(".2g"),
            stored=False,
        ),
    ]


def _excess_events(run: JudgedRun, threshold: float) -> float | None:
    return None if run.excess is None else run.excess.num_events[threshold]


def _losses(last_steps: int) -> list[Measure]:
    measure = functools.partial(
        Measure,
        group="At the end",
        form=_spread(".4f"),
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
            compute=_final_loss,
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


def _final_loss(run: JudgedRun) -> float:
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
        form=_spread(".1f"),
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
            form=_spread(".3g"),
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
            form=_spread(".1f"),
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
            form=_spread(".1f"),
        ),
        measure(
            name="clip_ms",
            label="Clip time per step (ms)",
            meaning="median over all steps of the time in the clip.",
            compute=lambda r: r.of_clip("clip_seconds", np.median),
            form=_spread(".2f"),
            better="lower",
            level="brief",
        ),
        measure(
            name="step_ms",
            label="Step time (ms)",
            meaning="median over all steps of the whole step.",
            compute=lambda r: r.average("step_seconds", np.median, factor=1000),
            form=_spread(".1f"),
            better="lower",
            level="brief",
        ),
        measure(
            name="wall_seconds",
            label="Wall time (s)",
            meaning="whole run, with evaluation and logging.",
            compute=lambda r: r.run.run.get("wall_seconds"),
            form=_spread(".0f"),
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
            form=_listed(".0f"),
            better="lower",
        ),
    ]
