# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A page: one HTML file that loads nothing, light and dark, at any width.

The data is in the page as JSON. A script shows it with the parts of
``assets/parts.js``: tables, charts that zoom together, heat maps.
"""

from __future__ import annotations

import html
import json
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

COLORS = {
    "ink": ("#24292f", "#e6edf3"),
    "soft": ("#57606a", "#9da7b3"),
    "line": ("#d0d7de", "#3d444d"),
    "paper": ("#ffffff", "#0d1117"),
    "panel": ("#f6f8fa", "#161b22"),
    "mark": ("#6e40c9", "#bc8cff"),
    "blue": ("#0072b2", "#56b4e9"),
    "orange": ("#d55e00", "#f0883e"),
    "green": ("#009e73", "#3fb68b"),
    "pink": ("#cc79a7", "#e39cc6"),
    "yellow": ("#e69f00", "#f2c14e"),
    "sky": ("#56b4e9", "#b3e0ff"),
    "grey": ("#7f7f7f", "#a0a0a0"),
    "brown": ("#8c564b", "#c49c94"),
}
"""Colors in light and in dark; the light ones of lines are those of Okabe and
Ito, which color-blind readers can tell apart."""

_ASSETS = Path(__file__).parent / "assets"


def html_page(title: str, data: Any, script: Path) -> str:
    """Return a page.

    Args:
        title: The page's title.
        data: JSON values, without NaN; the scripts' ``data``.
        script: A JavaScript file that shows ``data``.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    style = [color_css(":root"), _read("uplot/uPlot.min.css")]
    scripts = [_read("uplot/uPlot.iife.min.js"), _read("parts.js")]
    return string.Template(_read("page.html")).substitute(
        title=html.escape(title),
        style="\n".join([*style, _read("page.css")]),
        data=text.replace("<", "\\u003c"),
        script="\n".join([*scripts, script.read_text("utf-8")]),
    )


def _read(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")


def color_css(selector: str) -> str:
    """Define the colors as variables that follow the reader's scheme."""
    light, dark = (
        "".join(f"--{name}:{both[i]};" for name, both in COLORS.items())
        for i in range(2)
    )
    return (
        f"{selector}{{{light}}}@media(prefers-color-scheme:dark)"
        f"{{{selector}{{{dark}}}}}"
    )


def heat_groups(
    levels: np.ndarray, names: Sequence[str], groups: Iterable[str]
) -> list[dict[str, Any]]:
    """Return the rows of a heat map.

    Args:
        levels: ``[num_tensors, num_columns]``, numbers from 0 to 9, NaN for
            nothing known, infinite for Inf or NaN in the tensor.
        names: Name of each tensor.
        groups: Group of each tensor; the group shows the highest level.
    """
    rows: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        rows.setdefault(group, []).append(i)
    filled = np.where(np.isnan(levels), -1, levels)
    return [
        {
            "name": name,
            "levels": _text(filled[its].max(0)),
            "tensors": [[names[i], _text(filled[i])] for i in its],
        }
        for name, its in rows.items()
    ]


def _text(levels: np.ndarray) -> str:
    return "".join(
        " " if level < 0 else "x" if level > 9 else str(round(level))
        for level in levels.tolist()
    )
