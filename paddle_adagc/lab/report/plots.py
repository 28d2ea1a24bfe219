# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Figures for the docs: curves, paired differences, event rates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy import stats

from paddle_adagc.lab.report.charts import END, SPIKE, Chart, Line
from paddle_adagc.lab.report.style import (
    INK,
    NEUTRAL,
    fault_legend,
    log_axis,
    mark_faults,
    method_colors,
    step_axis,
    styled,
)

LEVEL = 0.95
"""Confidence level of the intervals."""

_MARKS: dict[str, dict[str, Any]] = {
    SPIKE: {"marker": "o", "markerfacecolor": "none", "markersize": 5},
    END: {"marker": "X", "markersize": 8},
}


@styled
def draw_chart(chart: Chart, width: float = 9.0) -> Figure:
    """Draw the curves of a chart, faults shaded, spikes marked.

    Args:
        chart: The curves; those of the first two methods are on top.
        width: Inches.
    """
    figure = Figure(figsize=(width, 3.3), layout="constrained")
    ax = figure.add_subplot()
    for line in [*chart.lines[2:], *chart.lines[:2]]:
        _draw_line(ax, line, chart.start)
    length = len(chart.lines[0].values)
    mark_faults(ax, chart.faults, chart.start, chart.start + length)
    ax.set_ylabel(chart.label)
    ax.margins(x=0.01)
    step_axis(ax)
    if chart.log:
        log_axis(ax)
    figure.legend(
        handles=_legend(chart),
        loc="outside upper center",
        ncols=6 if width > 6 else 3,
    )
    return figure


def _draw_line(ax: Axes, line: Line, start: int) -> None:
    steps = start + np.arange(len(line.values))
    if line.low is not None and line.high is not None:
        ax.fill_between(
            steps, line.low, line.high, color=line.color, alpha=0.2, linewidth=0
        )
    if line.raw is not None:
        ax.plot(steps, line.raw, color=line.color, linewidth=0.7, alpha=0.4)
    known = np.isfinite(line.values)
    is_sparse = 0 < known.sum() < len(known) / 4
    ax.plot(
        steps[known] if is_sparse else steps,
        line.values[known] if is_sparse else line.values,
        color=line.color,
        linewidth=1.2,
        marker="." if is_sparse else None,
    )
    for step, value, kind in line.marks:
        ax.plot(step, value, color=line.color, zorder=4, **_MARKS[kind])


def _legend(chart: Chart) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=line.color, linewidth=2, label=line.label)
        for line in chart.lines
    ]
    kinds = {kind for line in chart.lines for *_, kind in line.marks}
    handles += [
        Line2D([], [], color=NEUTRAL, linestyle="none", label=kind, **style)
        for kind, style in _MARKS.items()
        if kind in kinds
    ]
    return [*handles, *([fault_legend()] if chart.faults else [])]


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's t interval of the mean, at :data:`LEVEL`.

    Args:
        values: At least two finite numbers.
    """
    spread = statistics.stdev(values) / math.sqrt(len(values))
    half = spread * stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)
    mean = statistics.fmean(values)
    return mean - half, mean + half


def rate_interval(events: int, steps: int) -> tuple[float, float]:
    """Return the exact Poisson interval of events per 1,000 steps.

    Args:
        events: Number of events.
        steps: Judged steps that they were counted in, at least 1.
    """
    tail = (1 - LEVEL) / 2
    low = stats.chi2.ppf(tail, 2 * events) / 2 if events else 0.0
    high = stats.chi2.ppf(1 - tail, 2 * events + 2) / 2
    return 1000 * low / steps, 1000 * high / steps


@styled
def difference_figure(
    differences: Mapping[str, Sequence[float]],
    label: str,
    width: float = 9.0,
) -> Figure:
    """Draw the paired differences: a dot per seed, their mean and interval.

    Args:
        differences: By method, one finite difference per seed.
        label: What is subtracted from what, with the unit.
        width: Width of the figure in inches.
    """
    figure, ax = _rows(list(differences), label, width)
    ax.axvline(0, color=INK, linewidth=0.8)
    colors = method_colors(differences)
    for row, (method, values) in enumerate(differences.items()):
        color = colors[method]
        ax.plot(
            values, [row] * len(values), "o", color=color, alpha=0.45, zorder=3
        )
        if len(values) > 1:
            low, high = mean_interval(values)
            ax.plot([low, high], [row] * 2, color=color, linewidth=2)
        mean = statistics.fmean(values)
        ax.plot(mean, row, "D", color=color, markeredgecolor=INK, zorder=4)
    return figure


@styled
def rate_figure(
    counts: Mapping[str, tuple[int, int]], width: float = 9.0
) -> Figure:
    """Draw the spike events per 1,000 judged steps with exact intervals.

    Args:
        counts: By method, the events and the judged steps of all seeds.
        width: Width of the figure in inches.
    """
    label = "spike events per 1,000 judged steps"
    figure, ax = _rows(list(counts), label, width)
    colors = method_colors(counts)
    for row, (method, (events, steps)) in enumerate(counts.items()):
        color = colors[method]
        interval = rate_interval(events, steps)
        ax.plot(interval, [row] * 2, color=color, linewidth=2)
        ax.plot(
            1000 * events / steps, row, "D", color=color, markeredgecolor=INK
        )
    ax.set_xlim(left=-0.02 * ax.get_xlim()[1])
    return figure


def _rows(methods: list[str], label: str, width: float) -> tuple[Figure, Axes]:
    """Make axes with a row per method, the first on top."""
    height = 0.7 + 0.35 * len(methods)
    figure = Figure(figsize=(width, height), layout="constrained")
    ax = figure.add_subplot()
    ax.set_yticks(range(len(methods)), methods)
    ax.set_ylim(len(methods) - 0.5, -0.5)
    ax.set_xlabel(label)
    return figure, ax
