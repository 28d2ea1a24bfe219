# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What came out of an experiment: all measures, who wins, in sentences."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from adagc_lab.report.experiment import Experiment
from adagc_lab.report.formatting import Value
from adagc_lab.report.judged import JudgedRun, judge_runs
from adagc_lab.report.measures import (
    Measure,
    measure_experiment,
    run_measures,
)


class Row(NamedTuple):
    """One measure for every method."""

    measure: Measure
    cells: dict[str, str]
    """Formatted value by method; several seeds: a list, or mean ± spread."""

    best: list[str]
    """The methods with the best mean; empty if the measure has no better
    direction, a method has no value, or all are equal."""

    winner: str
    """``"AdaGC, in 3 of 3 seeds"``: how often the best method beats all."""


class Table(NamedTuple):
    """Measures as rows, methods as columns."""

    rows: list[Row]
    num_seeds: int


def measure_table(experiment: Experiment) -> Table:
    """Measure all runs, and arrange the numbers; rows without any go."""
    measured = measure_experiment(experiment)
    lengths = {
        run.run.get("config", {}).get("train", {}).get("max_steps")
        for runs in experiment.runs.values()
        for run in runs
    }
    is_ranked = len(lengths) == 1  # A run and its longer fork are no contest.
    rows = []
    for measure in run_measures(experiment.windows):
        if not measure.group:
            continue
        values = {
            method: [run.get(measure.name) for run in runs]
            for method, runs in measured.items()
        }
        cells = {method: measure.form(values[method]) for method in measured}
        is_count = measure.group.startswith("Spikes")
        if is_count or set(cells.values()) != {"–"}:
            best, winner = _best(measure, values) if is_ranked else ([], "–")
            rows.append(Row(measure, cells, best, winner))
    return Table(rows, len(experiment.seeds))


def _best(
    measure: Measure, values: Mapping[str, Sequence[Value]]
) -> tuple[list[str], str]:
    """Find the methods with the best mean, and how often the best wins."""
    sign = -1.0 if measure.better == "higher" else 1.0
    losses = {
        method: [
            math.inf if math.isnan(value) else sign * value
            for value in series
            if isinstance(value, (int, float))
        ]
        for method, series in values.items()
    }
    counts = {len(series) for series in losses.values()}
    if measure.better is None or len(counts) > 1 or 0 in counts:
        return [], "–"
    means = {m: statistics.fmean(series) for m, series in losses.items()}
    best = [m for m, mean in means.items() if mean == min(means.values())]
    if len(best) == len(means):
        return [], "–"
    own = losses.pop(best[0])
    if len(best) > 1 or len(own) == 1:
        return best, " and ".join(best)
    others = map(min, zip(*losses.values(), strict=True))
    wins = sum(map(operator.lt, own, others))
    return best, f"{best[0]}, in {wins} of {len(own)} seeds"


def headline(experiment: Experiment) -> list[str]:
    """Count the spikes of each method, and measure the damage."""
    return [
        f"{method}: {', '.join(_facts(runs))}"
        for method, runs in judge_runs(experiment).items()
    ]


def _facts(runs: Sequence[JudgedRun]) -> Iterator[str]:
    found = [run.score(run.experiment.windows[0]) for run in runs]
    if scores := [score for score in found if score is not None]:
        num_spikes = sum(score.num_spikes for score in scores)
        num_judged = sum(score.num_judged for score in scores)
        spikes = "spike" if num_spikes == 1 else "spikes"
        yield f"{num_spikes or 'no'} {spikes} in {num_judged:,} judged steps"
    else:
        yield "no step is judged: too few came before"
    if jumps := [run.jump for run in runs if run.jump is not None]:
        height, step = max(jumps, key=lambda jump: jump.height)
        yield f"worst loss jump {height:.3g} nat at step {step:,}"
    if areas := [run.excess.area for run in runs if run.excess is not None]:
        mean = statistics.fmean(areas)
        yield f"{mean:,.0f} nat × steps above the same run without faults"
