# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loss curves of two methods, and panels of several series.

They are written as text, so that the same numbers always give the same file.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

import numpy as np

CURVES_WIDTH, CURVES_HEIGHT = 760, 280
CURVES_LEFT, CURVES_RIGHT, CURVES_BOTTOM, TOP = 44, 736, 244, 40
"""Pixels."""

BIN = 10
"""Steps of which the largest loss is drawn."""

_COLORS = ("#d55e00", "var(--mark)")
_PANEL_COLORS = (*_COLORS, "#009e73", "#cc79a7")
_STYLE = (
    "<style>svg{--ink:#24292f;--soft:#57606a;--grid:#d8dce1;--paper:#fff;"
    "--mark:#0072b2;--band:#0072b222;font:12px sans-serif;max-width:100%}"
    "@media(prefers-color-scheme:dark){svg{--ink:#e6edf3;--soft:#9da7b3;"
    "--grid:#3a424d;--paper:#0d1117;--mark:#56b4e9;--band:#56b4e933}}"
    "text{fill:var(--ink)}.s{fill:var(--soft);font-size:11px}"
    ".t{font-weight:bold;font-size:13px}</style>"
)


def loss_curves_svg(
    title: str, losses: Mapping[str, Sequence[np.ndarray]]
) -> str:
    """Draw a line per run; ``losses`` has float64 ``[num_steps]`` by method."""
    lines = {
        method: [
            np.maximum.reduceat(run, np.arange(0, len(run), BIN))
            for run in runs
        ]
        for method, runs in losses.items()
    }
    every = np.concatenate([line for runs in lines.values() for line in runs])
    low, high = np.log10([every.min(), every.max()])
    num_bins = max(len(line) for runs in lines.values() for line in runs)

    def x(index: float) -> float:
        return CURVES_LEFT + index / num_bins * (CURVES_RIGHT - CURVES_LEFT)

    def y(loss: float) -> float:
        share = (math.log10(loss) - low) / (high - low)
        return CURVES_BOTTOM - share * (CURVES_BOTTOM - TOP)

    marks = []
    for tick in range(math.ceil(low), math.floor(high) + 1):
        at = y(10.0**tick)
        marks += [
            f'<path d="M{CURVES_LEFT} {at:.1f}H{CURVES_RIGHT}" '
            'stroke="var(--grid)"/>',
            f'<text class="s" x="{CURVES_LEFT - 6}" y="{at + 4:.1f}" '
            f'text-anchor="end">{10.0**tick:g}</text>',
        ]
    num_steps = num_bins * BIN
    below = CURVES_HEIGHT - 18
    for step in range(0, num_steps + 1, 10 ** int(math.log10(num_steps))):
        marks.append(_label(x(step / BIN), below, "middle", f"{step:,}"))
    marks.append(
        _label(CURVES_WIDTH / 2, below + 14, "middle", "optimizer step")
    )
    for number, (method, runs) in enumerate(lines.items()):
        color = _COLORS[number]
        marks.append(
            f'<text x="{CURVES_WIDTH - 170 + 90 * number}" y="18" '
            f'style="fill:{color}">{html.escape(method)}</text>'
        )
        for run in runs:
            points = " ".join(
                f"{x(i):.1f},{y(loss):.1f}" for i, loss in enumerate(run)
            )
            marks.append(
                f'<polyline points="{points}" fill="none" stroke="{color}" '
                'stroke-opacity=".7"/>'
            )
    return _framed(title, CURVES_WIDTH, CURVES_HEIGHT, marks)


def panels_svg(
    title: str,
    steps: np.ndarray,
    panels: Mapping[str, Mapping[str, Sequence[float]]],
) -> str:
    """Draw panels one under another, each with a line per run.

    ``panels``: label -> run -> a value per entry of ``steps``. The axes are
    logarithmic; a run has one color.
    """
    height, gap = 92, 30
    runs = [*dict.fromkeys(run for lines in panels.values() for run in lines)]
    colors = dict(zip(runs, _PANEL_COLORS, strict=False))
    first, last = float(steps[0]), float(steps[-1])

    def x(step: float) -> float:
        share = (step - first) / (last - first)
        return CURVES_LEFT + share * (CURVES_RIGHT - CURVES_LEFT)

    marks = [
        f'<text x="{CURVES_LEFT + 170 * number}" y="40" '
        f'style="fill:{color}">{html.escape(run)}</text>'
        for number, (run, color) in enumerate(colors.items())
    ]
    bottom = 30
    for label, lines in panels.items():
        top = bottom + gap
        bottom = top + height
        every = np.concatenate([np.asarray(line) for line in lines.values()])
        low, high = np.log10([np.nanmin(every), np.nanmax(every)])
        marks += _panel_axis(label, top, bottom, low, high)
        for run, line in lines.items():
            shares = (np.log10(np.asarray(line)) - low) / max(high - low, 1e-9)
            points = " ".join(
                f"{x(step):.1f},{bottom - share * height:.1f}"
                for step, share in zip(steps, shares, strict=True)
                if np.isfinite(share)
            )
            marks.append(
                f'<polyline points="{points}" fill="none" '
                f'stroke="{colors[run]}" stroke-width="1.5"/>'
            )
    unit = 10 ** int(math.log10(last - first))
    unit = unit if (last - first) / unit > 2.5 else unit // 5
    start = math.ceil(first / unit) * unit
    for step in range(start, int(last) + 1, unit):
        marks.append(_label(x(step), bottom + 16, "middle", f"{step:,}"))
    middle = (CURVES_LEFT + CURVES_RIGHT) / 2
    marks.append(_label(middle, bottom + 32, "middle", "optimizer step"))
    return _framed(title, CURVES_WIDTH, bottom + 40, marks)


def _panel_axis(
    label: str, top: int, bottom: int, low: float, high: float
) -> list[str]:
    """Label, frame and ticks of a panel from 10**low to 10**high."""
    marks = [_label(CURVES_LEFT, top - 5, "start", html.escape(label))]
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [m * 10.0**p for p in powers for m in (1, 2, 5)]
    if high - low > 1.5:
        ticks = [10.0**p for p in powers]
    for tick in ticks:
        share = (math.log10(tick) - low) / max(high - low, 1e-9)
        if 0 <= share <= 1:
            y = bottom - share * (bottom - top)
            marks += [
                _line(CURVES_LEFT, y, CURVES_RIGHT, y, "var(--grid)"),
                _label(CURVES_LEFT - 6, round(y) + 4, "end", f"{tick:g}"),
            ]
    return marks


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


def _line(
    x1: float, y1: float, x2: float, y2: float, color: str, width: int = 1
) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.4g}" x2="{x2:.1f}" y2="{y2:.4g}" '
        f'stroke="{color}" stroke-width="{width}"/>'
    )
