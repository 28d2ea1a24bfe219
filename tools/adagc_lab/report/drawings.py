# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Charts as data, and as a picture; pages draw the same data to be zoomed.

A picture is written as text, so that the same numbers always give the same
file.
"""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from paddle_adagc.watch.page import color_css

FIXED_COLORS = {"GlobalGC": "--orange", "AdaGC": "--blue"}
OTHER_COLORS = (
    *("--green", "--pink", "--yellow", "--sky", "--grey", "--brown"),
)

WIDTH, LEFT, GAP = 760, 44, 30
"""Pixels: the least width, room for the ticks, room above a panel."""

_LEAST_COLUMN, _LEGEND = 240, 170
_STYLE = (
    f"<style>{color_css('svg')}svg{{font:12px sans-serif;max-width:100%}}"
    "text{fill:var(--ink)}.s{fill:var(--soft);font-size:11px}"
    ".t{font-weight:bold;font-size:13px}"
    "path{fill:none;stroke-width:1.2;stroke-opacity:.8}</style>"
)


def method_colors(methods: Iterable[str]) -> dict[str, str]:
    """One color per method; GlobalGC and AdaGC always have the same one."""
    others = itertools.cycle(OTHER_COLORS)
    return {
        method: FIXED_COLORS.get(method) or next(others) for method in methods
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A curve, for example of one method."""

    label: str
    color: str
    """A name of ``paddle_adagc.watch.page.COLORS``, after two dashes."""

    values: np.ndarray
    """``[num_values]``, NaN where there is none; of several seeds the mean,
    smoothed if it is noisy."""

    low: np.ndarray | None = None
    high: np.ndarray | None = None
    """Least and largest value of the seeds, ``[num_values]``; None: one
    seed."""

    raw: np.ndarray | None = None
    """One seed's values before smoothing, ``[num_values]``."""

    marks: tuple[tuple[int, float], ...] = ()
    """Step and value of each spike, and of the last finite loss."""

    dashed: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the line for the page; NaN becomes ``null``."""
        fields = {
            name: [_rounded(v) for v in value.tolist()]
            if isinstance(value, np.ndarray)
            else value
            for name, value in vars(self).items()
            if value is not None
        }
        return {**fields, "marks": [(s, _rounded(v)) for s, v in self.marks]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves in the same axes."""

    label: str
    """What the y axis shows, with the unit in parentheses."""

    lines: list[Line]
    start: int = 0
    """Step of the first value."""

    every: int = 1
    """Steps from one value to the next."""

    log: bool = False
    """Logarithmic y axis."""

    range: tuple[float, float] | None = None
    """Least and largest value of the y axis; None: those of the lines."""

    spans: tuple[tuple[int, int], ...] = ()
    """First and last step of each burst of injected faults."""

    def as_json(self) -> dict[str, Any]:
        """Return the chart for the page."""
        return {**vars(self), "lines": [line.as_json() for line in self.lines]}


def value_range(charts: Sequence[Chart]) -> tuple[float, float] | None:
    """Return the least and the largest value that charts show, if any."""
    lines = [line.values for chart in charts for line in chart.lines]
    every = np.concatenate([*lines, np.zeros(0)])
    known = every[np.isfinite(every)]
    if charts[0].log:
        known = known[known > 0]
    return (float(known.min()), float(known.max())) if len(known) else None


def charts_svg(
    title: str, rows: Sequence[Sequence[Chart]], height: int = 92
) -> str:
    """Draw rows of charts under a title and a legend.

    Of lines it shows ``values`` alone. All charts show the same steps; each is
    ``height`` pixels high.
    """
    num_columns = max(map(len, rows))
    column = max(WIDTH, _LEAST_COLUMN * num_columns) // num_columns
    width = column * num_columns
    legend: dict[str, str] = {}
    for chart in itertools.chain(*rows):
        for line in chart.lines:
            legend.setdefault(line.color, line.label)
    marks = []
    for number, (color, label) in enumerate(legend.items()):
        line_number, place = divmod(number, width // _LEGEND)
        x, y = LEFT + _LEGEND * place, 40 + 16 * line_number
        marks.append(
            f'<text x="{x}" y="{y}" style="fill:var({color})">'
            f"{html.escape(label)}</text>"
        )
        bottom = y - 10
    for row in rows:
        top = bottom + GAP
        bottom = top + height
        for place, chart in enumerate(row):
            left = LEFT + place * column
            box = (left, top, (place + 1) * column - 24, bottom)
            most_ticks = 12 // num_columns if row is rows[-1] else 0
            marks += _panel(chart, box, most_ticks)
            if row is rows[-1]:
                middle = (box[0] + box[2]) / 2
                marks.append(
                    _label(middle, bottom + 32, "middle", "optimizer step")
                )
    return _framed(title, width, bottom + 40, marks)


def _panel(
    chart: Chart, box: tuple[int, int, int, int], most_ticks: int
) -> Iterator[str]:
    """Yield label, ticks, shaded steps and lines of a chart."""
    left, top, right, bottom = box
    length = max(len(line.values) for line in chart.lines)
    first, last = chart.start, chart.start + chart.every * (length - 1)
    limits = np.array(chart.range or value_range([chart]) or (0.0, 1.0))
    low, high = np.log10(limits) if chart.log else limits
    size = max(high - low, 1e-9)

    def x(step: float) -> float:
        share = (step - first) / max(last - first, 1)
        return left + min(max(share, 0), 1) * (right - left)

    yield _label(left, top - 5, "start", html.escape(chart.label))
    for tick in _log_ticks(low, high) if chart.log else _ticks(low, high, 4):
        at = math.log10(tick) if chart.log else tick
        y = bottom - (at - low) / size * (bottom - top)
        yield (
            f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="var(--line)"/>'
        )
        yield _label(left - 6, round(y) + 4, "end", f"{tick:g}")
    for step in _ticks(first, last, most_ticks) if most_ticks else ():
        yield _label(x(step), bottom + 16, "middle", f"{step:,g}")
    for start, end in chart.spans:
        if start <= last and end >= first:
            yield (
                f'<rect x="{x(start) - 1:.1f}" y="{top}" '
                f'width="{x(end) - x(start) + 2:.1f}" '
                f'height="{bottom - top}" fill="var(--mark)" '
                'fill-opacity=".3"/>'
            )
    for line in chart.lines:
        values = np.where(np.isfinite(line.values), line.values, np.nan)
        if chart.log:
            values = np.log10(np.where(values > 0, values, np.nan))
        heights = bottom - (values - low) / size * (bottom - top)
        points = " ".join(
            f"{x(first + chart.every * i):.1f},{y:.1f}"
            for i, y in enumerate(heights)
            if not math.isnan(y)
        )
        dashes = ' stroke-dasharray="4 4"' if line.dashed else ""
        if points:
            yield (f'<path d="M{points}" stroke="var({line.color})"{dashes}/>')


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten, few enough."""
    size = max(high - low, 1e-9)
    power = math.floor(math.log10(size / max(most, 1)))
    unit = next(
        m * 10.0**p
        for p in itertools.count(power)
        for m in (1, 2, 5)
        if size / (m * 10.0**p) <= most
    )
    first, last = math.ceil(low / unit - 1e-9), math.floor(high / unit + 1e-9)
    return [float(f"{unit * i:.6g}") for i in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks from 10**low to 10**high."""
    factors = (1,) if high - low > 1.5 else (1, 2, 5)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [m * 10.0**p for p in powers for m in factors]
    return [tick for tick in ticks if low <= math.log10(tick) <= high]


def _framed(title: str, width: int, height: int, marks: Sequence[str]) -> str:
    """Put marks under a title, in the colors of light and dark."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{html.escape(title)}</title>{_STYLE}"
        f'<rect width="{width}" height="{height}" fill="var(--paper)"/>'
        f'<text class="t" x="4" y="18">{html.escape(title)}</text>\n'
        + "\n".join(marks)
        + "\n</svg>\n"
    )


def _label(x: float, y: int, anchor: str, text: str) -> str:
    return (
        f'<text class="s" x="{x:.1f}" y="{y}" text-anchor="{anchor}">'
        f"{text}</text>"
    )


def _rounded(value: float) -> float | None:
    """Keep 5 significant digits."""
    return float(f"{value:.5g}") if np.isfinite(value) else None
