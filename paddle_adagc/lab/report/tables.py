# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tables of an experiment: all measures, and who wins."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.formatting import Value
from paddle_adagc.lab.report.measure import Measure
from paddle_adagc.lab.report.measuring import (
    experiment_measures,
    measure_experiment,
)

Measured = Mapping[str, Sequence[Mapping[str, Value]]]
"""Method -> one ``{name: value}`` per seed, from ``measure_experiment``."""


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
    def note(self) -> str:
        """How several seeds share a cell, and what a dash means."""
        note = "One seed."
        if self.num_seeds > 1:
            note = (
                f"{self.num_seeds} seeds: counts are listed seed by seed, "
                "other numbers are mean ± sample standard deviation, or median "
                "and range."
            )
        if any("–" in row.cells.values() for row in self.rows):
            note += " –: no value, such as spikes where no step was judged."
        return note

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

    Args:
        experiment: The runs.
        measured: What ``measure_experiment(experiment)`` returned, if it was
            called before.
    """
    if measured is None:
        measured = measure_experiment(experiment)
    methods = list(measured)
    rows = []
    for measure in experiment_measures(experiment):
        values = {
            method: [run.get(measure.name) for run in runs]
            for method, runs in measured.items()
        }
        cells = {method: measure.form(values[method]) for method in methods}
        is_count = measure.group.startswith("Spikes")
        if is_count or set(cells.values()) != {"–"}:
            rows.append(Row(measure, cells, *_best(measure, values)))
    return Table(methods, rows, len(experiment.seeds))


def paired_changes(
    measured: Measured, name: str, methods: Sequence[str]
) -> dict[str, list[float]]:
    """Subtract the first method's values of a measure, seed by seed.

    Args:
        measured: Values of all methods.
        name: The measure.
        methods: The reference, and the methods to compare with it; those
            without a finite value in every seed are left out.
    """
    finite = {
        method: known
        for method in methods
        if len(known := _finite(measured[method], name))
        == len(measured[method])
    }
    reference, *others = methods
    if reference not in finite:
        return {}
    return {
        method: [
            value - base
            for value, base in zip(
                finite[method], finite[reference], strict=True
            )
        ]
        for method in others
        if method in finite
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
    others = [losses[m] for m in losses if m != best[0]]
    wins = sum(
        value < min(rest)
        for value, *rest in zip(losses[best[0]], *others, strict=True)
    )
    return best, wins if len(best) == 1 else 0
