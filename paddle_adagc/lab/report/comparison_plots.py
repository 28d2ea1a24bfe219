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
"""Figures that compare methods: paired differences and event rates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from paddle_adagc.lab.report.style import INK, method_colors, styled

LEVEL = 0.95
"""Confidence level of the intervals."""


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's t interval of the mean, at :data:`LEVEL`.

    Args:
        values: At least two finite numbers.
    """
    spread = statistics.stdev(values) / math.sqrt(len(values))
    half = spread * stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)
    mean = statistics.fmean(values)
    return mean - half, mean + half


def rate_interval(events: int, steps: int) -> tuple[float, float]:
    """Exact Poisson interval of events per 1,000 steps, at :data:`LEVEL`.

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
    """Axes with a row per method, the first on top."""
    height = 0.7 + 0.35 * len(methods)
    figure = Figure(figsize=(width, height), layout="constrained")
    ax = figure.add_subplot()
    ax.set_yticks(range(len(methods)), methods)
    ax.set_ylim(len(methods) - 0.5, -0.5)
    ax.set_xlabel(label)
    return figure, ax
