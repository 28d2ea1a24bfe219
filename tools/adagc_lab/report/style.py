# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The look that all figures share: colours, fonts, axes, SVG data URIs."""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Iterable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

# Okabe and Ito's colours, which colour-blind readers can tell apart.
FIXED_COLORS = {"GlobalGC": "#d55e00", "AdaGC": "#0072b2"}
OTHER_COLORS = (
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f7f7f",
    "#8c564b",
)
NEUTRAL = "#8a8f98"
INK = "#24292f"
FAULT_COLOR = "#6e40c9"
_SOFT, _LINE, _GRID, _PAPER = "#57606a", "#b5bac1", "#e8eaed", "#ffffff"
_SCHEME = (
    (INK, "ink"),
    (_SOFT, "soft"),
    (_LINE, "line"),
    (_GRID, "grid"),
    (_PAPER, "paper"),
)
"""Colours of a figure that depend on the reader's colour scheme."""

_SVG_STYLE = (
    "<style>"
    f"svg{{--ink:{INK};--soft:{_SOFT};--line:{_LINE};--grid:{_GRID};"
    f"--paper:{_PAPER}}}"
    "@media(prefers-color-scheme:dark){svg{--ink:#e6edf3;--soft:#9da7b3;"
    "--line:#4b535d;--grid:#262c36;--paper:#0d1117}}"
    "image{image-rendering:pixelated}</style>"
)

_RC: Any = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 9.0,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.solid_joinstyle": "round",
}

styled = matplotlib.rc_context(_RC)
"""Decorator: the function draws with the report's settings."""


def method_colors(methods: Iterable[str]) -> dict[str, str]:
    """One colour per method; GlobalGC and AdaGC always have the same one."""
    others = itertools.cycle(OTHER_COLORS)
    return {
        method: FIXED_COLORS.get(method) or next(others) for method in methods
    }


def step_axis(ax: Axes, label: bool = True, num_ticks: int = 5) -> None:
    """Format the x axis of ``ax`` as optimizer steps."""
    ax.xaxis.set_major_locator(MaxNLocator(num_ticks, integer=True))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if label:
        ax.set_xlabel("optimizer step")


def mark_faults(
    ax: Axes, bursts: Iterable[tuple[int, int]], start: int, stop: int
) -> None:
    """Shade faults in ``[start, stop)``, at least a 250th of the axis wide."""
    least = (stop - start) / 250
    for first, last in bursts:
        if first < stop and last >= start:
            widen = max(0.0, least - (last - first)) / 2
            ax.axvspan(
                first - widen,
                last + widen,
                color=FAULT_COLOR,
                alpha=0.22,
                label="injected fault",
                linewidth=0,
                zorder=1,
            )


def svg_data_uri(figure: Figure) -> str:
    """Render as an SVG ``data:`` URI that follows the reader's colours."""
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.image_inline": True}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :]
    for color, name in _SCHEME:
        svg = svg.replace(color, f"var(--{name})")
    head, body = svg.split(">", 1)
    packed = base64.b64encode(f"{head}>{_SVG_STYLE}{body}".encode()).decode()
    return f"data:image/svg+xml;base64,{packed}"
