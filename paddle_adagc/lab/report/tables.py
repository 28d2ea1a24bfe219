# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What came out of an experiment: all measures, who wins, in sentences."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.formatting import Value
from paddle_adagc.lab.report.judged import JudgedRun, judge_runs
from paddle_adagc.lab.report.measures import (
    Measure,
    Measured,
    experiment_measures,
    final_loss,
    measure_experiment,
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One measure for every method."""

    measure: Measure
    cells: dict[str, str]
    """Formatted value by method; several seeds: a list, or mean ± spread."""

    best: list[str]
    """The methods with the best mean; empty if the measure has no better
    direction, a method has no value, or all are alike."""

    wins: int
    """Seeds in which the best method beats all others; 0 if there is not one
    best method."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Measures as rows, methods as columns."""

    methods: list[str]
    rows: list[Row]
    num_seeds: int

    @property
    def has_gaps(self) -> bool:
        """Whether a cell has no value."""
        return any("–" in row.cells.values() for row in self.rows)

    def groups(self) -> Iterator[tuple[str, list[Row]]]:
        """Yield the headings, each with its rows."""
        shown = (row for row in self.rows if row.measure.group)
        for group, rows in itertools.groupby(shown, lambda r: r.measure.group):
            yield group, list(rows)

    def headlines(self) -> list[Row]:
        """Rows of the table of who wins."""
        return [row for row in self.rows if row.measure.level == "headline"]

    def winner(self, row: Row) -> str:
        """Say who is best and how often: ``"AdaGC, in 3 of 3 seeds"``."""
        if len(row.best) != 1:
            return " and ".join(row.best) if row.best else "–"
        if self.num_seeds == 1:
            return row.best[0]
        return f"{row.best[0]}, in {row.wins} of {self.num_seeds} seeds"

    def legend(self) -> list[tuple[str, str]]:
        """Return every label once, with its meaning, in the rows' order."""
        meanings = {
            row.measure.label: row.measure.meaning
            for _, rows in self.groups()
            for row in rows
        }
        return [*meanings.items()]

    def to_markdown(self) -> str:
        """Render a pipe table."""
        lines = []
        for group, rows in self.groups():
            lines.append([f"**{group}**", *[""] * len(self.methods)])
            lines += [[r.measure.label, *r.cells.values()] for r in rows]
        return markdown_table(["", *self.methods], lines)


def comparison_table(
    experiment: Experiment, measured: Measured | None = None
) -> Table:
    """Arrange the numbers of ``experiment``; rows without any are left out.

    ``measured`` is what ``measure_experiment(experiment)`` returned, if it was
    called before.
    """
    measured = measured or measure_experiment(experiment)
    methods = list(measured)
    rows = []
    # A run and its longer fork are no contest.
    is_ranked = (
        len(
            {
                run.run.get("config", {}).get("train", {}).get("max_steps")
                for runs in experiment.runs.values()
                for run in runs
            }
        )
        == 1
    )
    for measure in experiment_measures(experiment):
        values = {
            method: [run.get(measure.name) for run in runs]
            for method, runs in measured.items()
        }
        cells = {method: measure.form(values[method]) for method in methods}
        is_count = measure.group.startswith("Spikes")
        if is_count or set(cells.values()) != {"–"}:
            best = _best(measure, values) if is_ranked else ([], 0)
            rows.append(Row(measure, cells, *best))
    return Table(methods, rows, len(experiment.seeds))


def paired_changes(
    measured: Measured, name: str, methods: Sequence[str]
) -> dict[str, list[float]]:
    """Subtract the first method's values of a measure, seed by seed.

    Methods without a finite value in every seed are left out.
    """
    found = {method: _finite(measured[method], name) for method in methods}
    reference = found.pop(methods[0])
    if len(reference) < len(measured[methods[0]]):
        return {}
    return {
        method: np.subtract(values, reference).tolist()
        for method, values in found.items()
        if len(values) == len(measured[method])
    }


def event_counts(
    measured: Measured, window: int, methods: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Count the spike events and judged steps of all seeds, by method.

    Methods without a judged step are left out.
    """
    counts = {}
    for method in methods:
        events = _finite(measured[method], f"events_{window}")
        steps = _finite(measured[method], f"judged_{window}")
        if sum(steps):
            counts[method] = (int(sum(events)), int(sum(steps)))
    return counts


def _finite(runs: Sequence[Mapping[str, Value]], name: str) -> list[float]:
    return [
        value
        for run in runs
        if isinstance(value := run.get(name), (int, float))
        and math.isfinite(value)
    ]


def _best(
    measure: Measure, values: Mapping[str, Sequence[Value]]
) -> tuple[list[str], int]:
    """Find the methods with the best mean, and in how many seeds it wins."""
    if measure.better is None or len(values) < 2:
        return [], 0
    sign = 1.0 if measure.better == "lower" else -1.0
    losses = {
        method: [
            math.inf if math.isnan(value) else sign * value
            for value in series
            if isinstance(value, (int, float))
        ]
        for method, series in values.items()
    }
    counts = {len(series) for series in losses.values()}
    if len(counts) > 1 or 0 in counts:
        return [], 0
    means = {m: statistics.fmean(series) for m, series in losses.items()}
    lowest = min(means.values())
    best = [m for m, mean in means.items() if mean == lowest]
    if len(best) == len(means):
        return [], 0
    if len(best) > 1:
        return best, 0
    own = losses.pop(best[0])
    others = zip(*losses.values(), strict=True)
    return best, sum(map(operator.lt, own, map(min, others)))


def headline(experiment: Experiment) -> list[str]:
    """Count the spikes of each method, and measure the damage.

    ``"GlobalGC: 10 spikes in 440 judged steps, worst loss jump 0.353 nat"``.
    """
    return [
        f"{method}: {_spikes(runs)}{_jump(runs)}{_excess(runs)}"
        for method, runs in judge_runs(experiment).items()
    ]


def _spikes(runs: Sequence[JudgedRun]) -> str:
    found = [run.score(run.experiment.windows[0]) for run in runs]
    scores = [score for score in found if score is not None]
    if not scores:
        return "no step is judged: too few came before"
    num_spikes = sum(score.num_spikes for score in scores)
    num_judged = sum(score.num_judged for score in scores)
    spikes = f"{num_spikes or 'no'} spike{'s' * (num_spikes != 1)}"
    return f"{spikes} in {num_judged:,} judged steps"


def _jump(runs: Sequence[JudgedRun]) -> str:
    jumps = [run.jump for run in runs if run.jump is not None]
    if not jumps:
        return ""
    worst = max(jumps, key=lambda jump: jump.height)
    return f", worst loss jump {worst.height:.3g} nat at step {worst.step:,}"


def _excess(runs: Sequence[JudgedRun]) -> str:
    areas = [run.excess.area for run in runs if run.excess is not None]
    if not areas:
        return ""
    mean = sum(areas) / len(areas)
    return f", {mean:,.0f} nat × steps above the same run without faults"


def conclusion(experiments: Sequence[Experiment]) -> list[str]:
    """Say in one sentence per experiment what the loss did.

    ``"Llama proxy: worst loss jump 3.2 nat under GlobalGC, 0.3 nat under AdaGC;
    final loss 1.2 nat under GlobalGC, 1.1 nat under AdaGC."`` The last sentence
    says what fewer than 3 seeds are worth.
    """
    sentences = [_sentence(experiment) for experiment in experiments]
    if any(len(experiment.seeds) < 3 for experiment in experiments):
        sentences.append(
            "Fewer than 3 seeds are an illustration, not a result: "
            "docs/results.md has more."
        )
    return sentences


def _sentence(experiment: Experiment) -> str:
    jumps, losses = [], []
    for method, runs in judge_runs(experiment).items():
        heights = [run.jump.height for run in runs if run.jump is not None]
        if heights:
            jumps.append(f"{max(heights):.2g} nat under {method}")
        final = sum(map(final_loss, runs)) / len(runs)
        losses.append(f"{final:.3g} nat under {method}")
    seen = [f"final loss {', '.join(losses)}"]
    if jumps:
        seen.insert(0, f"worst loss jump {', '.join(jumps)}")
    return f"{experiment.title}: {'; '.join(seen)}."
