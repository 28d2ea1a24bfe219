# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The one list of measures: what each is, how it is computed and printed.

The report's tables and the table of who wins follow from :func:`run_measures`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from adagc_lab.data.config import IMAGE_TEXT_KINDS
from adagc_lab.report.excess import EXCESS_THRESHOLDS
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.formatting import (
    Value,
    format_list,
    format_range,
    format_same,
    format_spread,
)
from adagc_lab.report.judged import (
    BEFORE,
    GROWTH_STEPS,
    MASS_WINDOW,
    JudgedRun,
    judge_runs,
    judged_steps,
    memorises,
    moment_growth,
    spike_mass,
)

LAST_STEPS = 100
"""Steps at the end whose mean is the final training loss."""

REPLAYED_STEPS = 300
"""First steps under GlobalGC that say whether AdaGC would help."""

Level = Literal["detail", "brief", "headline"]
Form = Callable[[Sequence[Value]], str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of a run, and everything that tables say about it."""

    name: str
    """Its key, for example ``"events_1000"``."""

    label: str
    """What tables call it, with the unit in parentheses."""

    meaning: str
    """What it is, in a sentence."""

    compute: Callable[[JudgedRun], Value]
    """None where it cannot be measured."""

    form: Form = format_list
    """Formats one value per seed as a cell."""

    better: Literal["lower", "higher"] | None = None
    """The direction that is better, None if neither is."""

    group: str = ""
    """Heading in the report's table; without one it is not in the table."""

    qualifier: str = ""
    """What tables without the group's heading add to the label."""

    level: Level = "detail"
    """``"brief"``: in the docs' short tables, too; ``"headline"``: also in the
    table of who wins."""

    change: str | None = None
    """Format of the paired difference, where short tables show it."""

    @property
    def title(self) -> str:
        """The label with its qualifier."""
        return ", ".join(filter(None, (self.label, self.qualifier)))


def listed(spec: str) -> Form:
    return functools.partial(format_list, spec=spec)


def ranged(spec: str) -> Form:
    return functools.partial(format_range, spec=spec)


def spread(spec: str) -> Form:
    return functools.partial(format_spread, spec=spec)


def measure_experiment(
    experiment: Experiment,
) -> dict[str, list[dict[str, Value]]]:
    """Measure every run: method -> one ``{name: value}`` per seed."""
    measures = run_measures(experiment.windows)
    return {
        method: [
            {measure.name: measure.compute(run) for measure in measures}
            for run in runs
        ]
        for method, runs in judge_runs(experiment).items()
    }


def run_measures(windows: Sequence[int] = (1000, 200)) -> list[Measure]:
    """List the measures, in the order of the table."""
    main, *others = windows
    spikes = [_spikes(main, "brief"), *(_spikes(w, "detail") for w in others)]
    return [
        *itertools.chain(*spikes),
        *_damage(),
        *_excess(),
        *_losses(),
        _accuracy(),
        *_costs(),
    ]


def _of(found: object | None, name: str, absent: Value = None) -> Value:
    """Return an attribute, or ``absent`` if it is None; None of nothing."""
    if found is None:
        return None
    value: Value = getattr(found, name)
    return absent if value is None else value


def _spikes(window: int, level: Level) -> list[Measure]:
    measure = functools.partial(
        Measure,
        group=f"Spikes, window {window:,} steps",
        qualifier=f"window {window:,}",
        better="lower",
    )
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
            level=level,
        ),
        measure(
            name=f"events_{window}",
            label="Spike events",
            meaning="groups of neighbouring spikes: one event can last many "
            "steps. A run that diverged has at least one.",
            compute=lambda r: _at_least_one(r, window, "num_events"),
            level="headline",
        ),
        measure(
            name=f"score_{window}",
            label="Spike score (%)",
            meaning="spikes in percent of all steps but the corrupted "
            "batches: the paper's measure.",
            compute=lambda r: _of(r.score(window), "percent"),
            form=spread(".3f"),
            level=level,
        ),
        measure(
            name=f"judged_{window}",
            label="Judged steps",
            meaning="steps after the skipped ones that have a full window "
            "before them; – where there is none: no spike could be seen.",
            compute=lambda r: _at_least_one(r, window, "num_judged"),
            form=format_same,
            better=None,
        ),
    ]


def _at_least_one(run: JudgedRun, window: int, name: str) -> float | None:
    """Return a count; at least the step at which a run diverged."""
    score = run.score(window)
    if score is None:
        return 1 if run.diverged else None
    return max(getattr(score, name), int(run.diverged))


def _damage() -> list[Measure]:
    measure = functools.partial(Measure, group="Damage to the loss")
    return [
        measure(
            name="spike_mass",
            label="Spike mass (nat × steps)",
            meaning="judged loss above the running median plus 5 median "
            f"absolute deviations of {MASS_WINDOW} steps before, summed; a "
            "lasting disturbance does not hide itself.",
            compute=lambda r: (
                math.inf
                if r.diverged
                else spike_mass(r.series[0][r.series[1] :])
            ),
            form=spread(".2f"),
            better="lower",
            level="brief",
        ),
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
        ),
        measure(
            name="moment1_growth",
            label="Growth of a first moment (×)",
            meaning="largest factor by which the norm of a tensor's first "
            f"moment grew within {GROWTH_STEPS} steps.",
            compute=lambda r: moment_growth(
                r.run.tensors["moment1"], r.experiment.skip_steps
            ),
            form=ranged(".1f"),
            level="brief",
        ),
    ]


def _num_events(threshold: float, run: JudgedRun) -> float | None:
    return None if run.excess is None else run.excess.num_events[threshold]


def _excess() -> list[Measure]:
    measure = functools.partial(
        Measure,
        group="Excess over the same run without faults",
        better="lower",
    )
    least, most = EXCESS_THRESHOLDS
    return [
        *(
            measure(
                name=f"events_above_{threshold}",
                label=f"Excess events above {threshold} nat",
                meaning="times the loss exceeded that of the paired run (same "
                "method, seed and batches, no faults) by more than "
                f"{threshold} nat; an event ends when the excess stays below "
                f"{least} nat for more than 10 steps.",
                compute=functools.partial(_num_events, threshold),
                level="headline" if threshold == most else "detail",
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
            level="headline",
            change="+.1f",
        ),
        measure(
            name="excess_worst",
            label="Largest excess (nat)",
            meaning="at a single step, corrupted batches left out.",
            compute=lambda r: _of(r.excess, "worst"),
            form=ranged(".2f"),
            level="brief",
        ),
        measure(
            name="excess_recovery",
            label="Steps until it is gone",
            meaning="the longest over all faults until the mean excess of 10 "
            "steps stays below 0.1 nat; ∞: not before the next fault or the "
            "end.",
            compute=lambda r: _of(r.excess, "steps_to_recover", math.inf),
        ),
    ]


def _losses() -> list[Measure]:
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
            meaning=f"mean of the last {LAST_STEPS} steps, corrupted "
            "batches left out; NaN: one of them was not finite.",
            compute=final_loss,
        ),
        measure(
            name="validation_loss",
            label="Validation loss (nat)",
            meaning="the last evaluation on data that is not trained on; ∞: "
            "the run diverged. Not shown for a few sequences that are "
            "memorised.",
            compute=lambda r: (
                None
                if memorises(r.run)
                else math.inf
                if r.diverged
                else r.last("eval_loss")
            ),
        ),
    ]


def replayed_percent(run: JudgedRun) -> float | None:
    """What AdaGC as in the paper would have clipped early under GlobalGC."""
    from paddle_adagc.watch.replay import Settings, replay

    threshold = run.config.get("clip", {}).get("lambda_abs", 1.0)
    settings = Settings(lambda_abs=threshold, strict=True)
    norms = run.run.tensors.get("norm", np.zeros((0, 0)))[:REPLAYED_STEPS]
    is_global = run.config.get("clip", {}).get("name") == "global_norm"
    if not is_global or len(norms) < REPLAYED_STEPS or np.isnan(norms).all():
        return None
    h = replay(norms, settings).h[settings.t_start :]
    known = norms[settings.t_start :] > 0
    return 100 * float(np.mean(h[known] < 1)) if known.any() else None


def final_loss(run: JudgedRun) -> float:
    """Mean training loss of the last steps; NaN if none is judged."""
    start = run.run.num_steps - LAST_STEPS
    steps = judged_steps(run.run, start)
    return float(np.mean(run.run.loss[steps])) if len(steps) else math.nan


def _accuracy() -> Measure:
    return Measure(
        name="retrieval_accuracy",
        label="Retrieval accuracy (%)",
        meaning="the last evaluation; −∞: the run diverged.",
        compute=_last_accuracy,
        form=spread(".1f"),
        better="higher",
        group="At the end",
        level="headline",
        change="+.1f",
    )


def _last_accuracy(run: JudgedRun) -> float | None:
    has_captions = run.config.get("data", {}).get("kind") in IMAGE_TEXT_KINDS
    if run.diverged and has_captions:
        return -math.inf
    value = run.last("retrieval_accuracy")
    return None if value is None else 100 * value


def _costs() -> list[Measure]:
    measure = functools.partial(Measure, group="The run")
    return [
        measure(
            name="clipped_percent",
            label="Tensors clipped (%)",
            meaning="mean over the judged steps of the share of tensors with "
            "h < 1.",
            compute=lambda r: r.clipped_percent(r.experiment.skip_steps),
            form=spread(".1f"),
            level="brief",
        ),
        measure(
            name="clipped_percent_end",
            label="… over the last fifth (%)",
            meaning="the same over the last fifth of the steps.",
            compute=lambda r: r.clipped_percent(
                r.run.num_steps - r.run.num_steps // 5
            ),
            form=spread(".1f"),
        ),
        measure(
            name="replayed_percent",
            label="AdaGC would clip (%)",
            meaning="share of the tensors that AdaGC, replayed over the norms "
            f"of a run under GlobalGC, clips after its warm-up in the first "
            f"{REPLAYED_STEPS} steps.",
            compute=replayed_percent,
            form=spread(".1f"),
        ),
        measure(
            name="clip_ms",
            label="Clip time per step (ms)",
            meaning="median over all steps of the time in the clip.",
            compute=lambda r: r.median_ms("clip_seconds"),
            form=spread(".2f"),
            better="lower",
            level="brief",
        ),
        measure(
            name="step_ms",
            label="Step time (ms)",
            meaning="median over all steps of the whole step.",
            compute=lambda r: r.median_ms("step_seconds"),
            form=spread(".1f"),
            better="lower",
            level="brief",
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
        ),
        Measure(  # without a group: stored, but not in the table
            name="diverged",
            label="Diverged",
            meaning="1 if the run diverged, 0 if not.",
            compute=lambda r: float(r.diverged),
            form=listed(".0f"),
            better="lower",
        ),
    ]
