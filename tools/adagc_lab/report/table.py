# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The measures of an experiment's runs, as tables."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from adagc_lab.record.files import RunRecord
from adagc_lab.report.differences import difference, shown
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.judged import judged_steps
from adagc_lab.report.measures import (
    BEFORE,
    END,
    GAP,
    Row,
    damage,
    describe_run,
    judged,
    measure,
)
from paddle_adagc.spikes import spike_score


class Measure(NamedTuple):
    """A row of the tables."""

    label: str
    """With the unit in parentheses."""

    digits: int
    meaning: str
    """What it is, where the label does not say it."""

    has_difference: bool = False
    """Whether methods are compared by it, seed by seed."""


MEASURES = {
    "spike_score": Measure(
        "Spike score (%)",
        3,
        "steps whose loss lies 10 standard deviations from the mean of the "
        "1,000 before, in percent of all steps: the paper's measure. Lasting "
        "spikes widen that window and hide one another",
    ),
    "peaks": Measure(
        "Peaks above 0.5 nat",
        0,
        f"above the median of the {BEFORE} losses before; steps at most {GAP} "
        "apart are one peak. A run that diverged has one",
    ),
    "low_peaks": Measure("Peaks above 0.1 nat", 0, ""),
    "worst": Measure(
        "Worst rise (nat)", 3, "the highest of them; ∞: the run diverged"
    ),
    "fault_peaks": Measure(
        "Fault peaks above 0.5 nat",
        0,
        "above the loss of the same run without faults",
    ),
    "worst_rise": Measure("Worst rise over the clean run (nat)", 3, ""),
    "damage": Measure(
        "Damage over the clean run (nat)",
        4,
        "mean loss above it, from the first fault to the end",
        True,
    ),
    "mean": Measure("Mean loss of the judged steps (nat)", 4, "", True),
    "last_loss": Measure(
        "Loss at the end (nat)",
        4,
        f"mean of the last fifth of the steps, at most {END}",
        True,
    ),
    "validation_loss": Measure(
        "Validation loss (nat)",
        4,
        "of data that is not trained on; not shown for a few sequences that "
        "are memorised",
        True,
    ),
    "retrieval_accuracy": Measure("Retrieval accuracy", 3, "", True),
    "clipped_percent": Measure(
        "Tensors clipped (%)",
        1,
        "mean share of tensors with h < 1, from step 100 on",
    ),
    "smallest_h": Measure("Smallest h", 5, "from step 100 on"),
    "clip_ms": Measure("Clip time per step (ms)", 2, "median"),
    "step_ms": Measure("Step time (ms)", 1, "median"),
    "steps": Measure("Steps", 0, ""),
}


def measure_experiment(experiment: Experiment) -> pd.DataFrame:
    """Return a row per run: ``method``, ``seed``, ``status``, the measures."""
    found = []
    for method, runs in experiment.runs.items():
        twins = experiment.clean_runs.get(method, [])
        for number, run in enumerate(runs):
            row = describe_run(run, experiment.skip_steps)
            row = {**row, **measure(row), **_of_loss(row, run, experiment)}
            twin = twins[number] if number < len(twins) else None
            if twin is not None and row["faults"]:
                row |= damage(row, describe_run(twin, experiment.skip_steps))
            row["method"], row["seed"] = method, run.run.get("seed")
            found.append(row)
    columns = ["method", "seed", "status", *MEASURES]
    return pd.DataFrame(found).reindex(columns=columns)


def _of_loss(
    row: Row, run: RunRecord, experiment: Experiment
) -> dict[str, float]:
    """Measures of the report alone."""
    loss = judged(row)
    known = loss[np.isfinite(loss)]
    number = max(1, min(END, run.num_steps // 5))
    end = float(known[-number:].mean()) if known.size else math.nan
    steps = judged_steps(run)
    skip = int(np.count_nonzero(steps < experiment.skip_steps))
    score = spike_score(run.loss[steps], skip=skip)
    is_judged = score.num_values > score.num_unjudged or score.num_spikes
    return {
        "spike_score": score.percent if is_judged else math.nan,
        "last_loss": math.inf if row["status"] == "diverged" else end,
    }


def measure_table(measured: pd.DataFrame) -> pd.DataFrame:
    """Arrange what :func:`measure_experiment` returns: methods as columns.

    Several seeds are a mean ± standard deviation, or a list if they are few.
    Measures that no run has are left out.
    """
    methods = dict.fromkeys(measured["method"])
    table = {}
    for name, row in MEASURES.items():
        cells = {
            method: cell(
                measured.loc[measured["method"] == method, name], row.digits
            )
            for method in methods
        }
        if name == "spike_score":
            short = "– (too short)"
            cells = {m: x.replace("–", short) for m, x in cells.items()}
        if {*cells.values()} != {"–"}:
            table[row.label] = cells
    table["Status"] = {
        method: ", ".join(
            dict.fromkeys(measured.loc[measured["method"] == method, "status"])
        )
        for method in methods
    }
    return pd.DataFrame(table).T


def cell(values: pd.Series, digits: int) -> str:
    """Format one value per seed: ``"1.2 ± 0.1"``, ``"0 / 3"``, ``"–"``."""
    numbers = values.astype(float).to_numpy()
    texts = [_text(number, digits) for number in numbers]
    if len({*texts}) == 1:
        return texts[0]
    if digits and len(numbers) > 2 and np.isfinite(numbers).all():
        mean, spread = numbers.mean(), numbers.std(ddof=1)
        return f"{_text(mean, digits)} ± {_text(spread, digits)}"
    return " / ".join(texts)


def _text(number: float, digits: int) -> str:
    if math.isnan(number):
        return "–"
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    return f"{number:,.{digits}f}"


def seed_gains(measured: pd.DataFrame, name: str) -> pd.DataFrame:
    """Differences from the first method: a row per seed, methods as columns."""
    reference, *others = dict.fromkeys(measured["method"])
    by = measured.pivot(index="seed", columns="method", values=name)
    return by[others].sub(by[reference], axis=0)


def difference_table(measured: pd.DataFrame) -> pd.DataFrame:
    """Means of :func:`seed_gains` with 95% limits, by measure."""
    table = {}
    for name, row in MEASURES.items():
        if row.has_difference:
            gains = seed_gains(measured, name)
            cells = {m: shown(difference(gains[m]), 4) for m in gains}
            if {*cells.values()} - {"–"}:
                table[row.label] = cells
    return pd.DataFrame(table).T
