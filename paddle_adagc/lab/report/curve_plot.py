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
"""Draw a chart with matplotlib, for the docs."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from paddle_adagc.lab.report.charts import END, SPIKE, Chart, Line
from paddle_adagc.lab.report.style import (
    NEUTRAL,
    fault_legend,
    log_axis,
    mark_faults,
    step_axis,
    styled,
)

_MARKS = {
    SPIKE: {"marker": "o", "markerfacecolor": "none", "markersize": 5},
    END: {"marker": "X", "markersize": 8},
}


@styled
def draw_chart(chart: Chart, width: float = 9.0) -> Figure:
    """Draw the curves of a chart, faults shaded, spikes marked.

    Args:
        chart: The curves; those of the first two methods are on top.
        width: Width of the figure in inches.
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
        ncols=3 if width < 6 else 6,
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
