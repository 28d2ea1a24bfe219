# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Forest plots: a row per proxy or method, with its 95% limits.

They are written as text, so that the same numbers always give the same file.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

WIDTH, LEFT, RIGHT, TOP, ROW = 400, 104, 246, 40, 26
"""Pixels; on a telephone the figure keeps its size."""

_LOWEST, _HIGHEST = 0.01, 100.0
"""Ends of the axis of ratios; what lies beyond ends there."""

_STYLE = (
    "<style>svg{--ink:#24292f;--soft:#57606a;--grid:#d8dce1;--paper:#fff;"
    "--mark:#0072b2;--band:#0072b222;font:12px sans-serif;max-width:100%}"
    "@media(prefers-color-scheme:dark){svg{--ink:#e6edf3;--soft:#9da7b3;"
    "--grid:#3a424d;--paper:#0d1117;--mark:#56b4e9;--band:#56b4e933}}"
    "text{fill:var(--ink)}.s{fill:var(--soft);font-size:11px}"
    ".t{font-weight:bold;font-size:13px}</style>"
)


class ForestRow(NamedTuple):
    """A line of a forest plot."""

    label: str
    value: float
    low: float
    high: float
    text: str
    """The numbers in words, at the right."""


def mean_limits(differences: np.ndarray) -> tuple[float, float]:
    """95% limits of a mean by Student's t; both the mean of one value."""
    mean = float(differences.mean())
    if len(differences) < 2:
        return mean, mean
    half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    return mean - float(half), mean + float(half)


def forest_svg(
    title: str,
    rows: Sequence[ForestRow],
    *,
    is_ratio: bool,
    margin: float | None = None,
    ends: tuple[str, str] = ("AdaGC lower", "AdaGC higher"),
    label_width: int = LEFT,
) -> str:
    """Draw a forest plot; light or dark like the reader's system.

    The axis is logarithmic around 1 for ratios, else linear around 0;
    ``margin`` is half the shaded band; ``ends`` say what its sides mean.
    ``label_width`` is in pixels.
    """
    start, shift = label_width, label_width - LEFT
    end, width = RIGHT + shift, WIDTH + shift

    known = [abs(x) for row in rows for x in (row.low, row.high, margin or 0)]
    reach = 1.05 * max(filter(math.isfinite, known), default=1.0)

    def place(value: float) -> float:
        if is_ratio:
            value = min(max(value, _LOWEST), _HIGHEST)
            share = math.log(value / _LOWEST) / math.log(_HIGHEST / _LOWEST)
        else:
            share = (min(max(value, -reach), reach) / reach + 1) / 2
        return start + share * (end - start)

    bottom = TOP + ROW * len(rows)
    middle = place(1.0 if is_ratio else 0.0)
    marks: list[str] = []
    if margin is not None:
        left, right = place(-margin), place(margin)
        marks.append(
            f'<rect x="{left:.1f}" y="{TOP - 8}" width="{right - left:.1f}" '
            f'height="{bottom - TOP + 8}" fill="var(--band)"/>'
        )
    marks.append(_line(middle, TOP - 8, middle, bottom, "var(--soft)"))
    for number, row in enumerate(rows):
        y = TOP + ROW * number + 8
        x, low, high = map(place, (row.value, row.low, row.high))
        marks += [
            f'<text x="4" y="{y + 4}">{html.escape(row.label)}</text>',
            _line(low, y, high, y, "var(--mark)", 2),
            f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="var(--mark)"/>',
            f'<text class="s" x="{end + 8}" y="{y + 4}">'
            f"{html.escape(row.text)}</text>",
        ]
    unit = 10 ** math.floor(math.log10(reach))
    side = max(t * unit for t in (0.5, 1, 2, 5) if t * unit <= 0.8 * reach)
    ticks = [(0.0, "0"), *((t, f"{t:+g}") for t in (-side, side))]
    if is_ratio:
        ticks = [(t, f"{t:g}") for t in (0.01, 0.1, 1, 10, 100)]
    marks += [
        f'<text class="s" x="{place(tick):.1f}" y="{bottom + 14}" '
        f'text-anchor="middle">{text}</text>'
        for tick, text in ticks
    ]
    marks += [
        f'<text class="s" x="{x:.1f}" y="{bottom + 30}" text-anchor="{anchor}">'
        f"{html.escape(text)}</text>"
        for x, anchor, text in (
            (middle - 6, "end", f"← {ends[0]}"),
            (middle + 6, "start", f"{ends[1]} →"),
        )
    ]
    return framed(title, width, bottom + 38, marks)


def framed(title: str, width: int, height: int, marks: Sequence[str]) -> str:
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


def _line(
    x1: float, y1: float, x2: float, y2: float, color: str, width: int = 1
) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}" '
        f'stroke="{color}" stroke-width="{width}"/>'
    )
