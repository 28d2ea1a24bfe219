# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A page: one HTML file that loads nothing, light and dark, at any width.

The data is in the page as JSON, with curves and a heat map of each run. A
script shows it with the parts of ``assets/parts.js``.
"""

from __future__ import annotations

import html
import json
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.files import atomic_write
from paddle_adagc.watch.store import RecordedRun
from paddle_adagc.watch.tensors import layer_of, medians
from paddle_adagc.watch.verdict import plain

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
_MADE_BY_US = b'<meta name="generator" content="adagc-report">'
_NUM_POINTS = 600
_NUM_COLUMNS = 120  # of the heat map
_NUM_PAST_COLUMNS = 12
_MAX_ROWS = 4000
_CURVES = (
    *("loss", "global_grad_norm", "clipped_grad_norm", "clipped_fraction"),
    *("h_median", "shadow_clipped_fraction", "shadow_h_median"),
    "learning_rate",
)


def write_page(path: Path, pages: Sequence[dict[str, Any]]) -> Path:
    """Write the page of some runs, whole or not at all.

    Raises:
        ValueError: A file is there that this command did not make.
    """
    if path.exists():
        with path.open("rb") as file:
            if _MADE_BY_US not in file.read(4096):
                raise ValueError(
                    f"{path} is not a page of adagc-report: choose another "
                    "name with --output"
                )
    text = html_page("adagc-report", plain(pages), _ASSETS / "page.js")
    return atomic_write(path, text)


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


def pictures(run: RecordedRun, page: dict[str, Any]) -> dict[str, Any]:
    """Return a run's curves and heat map, as JSON values."""
    marks = [[e["first"], e["last"]] for e in page["events"]]
    peaks = [e["peak"] for e in page["events"]]
    return plain(
        {"curves": {**_curves(run), "marks": marks}, "heat": _heat(run, peaks)}
    )


def _curves(run: RecordedRun) -> dict[str, Any]:
    """Return series with the lowest and highest value of each bin."""
    num_bins = min(_NUM_POINTS, max(len(run.step), 1))
    edges = np.unique(np.linspace(0, len(run.step), num_bins + 1).astype(int))
    starts = edges[:-1]
    found: dict[str, Any] = {"step": run.step[starts].tolist()}
    for name in _CURVES:
        values = run.column(name)
        if not np.isfinite(values).any():
            continue
        low = np.where(np.isfinite(values), values, np.inf)
        high = np.where(np.isfinite(values), values, -np.inf)
        found[name] = {
            "low": np.minimum.reduceat(low, starts).tolist(),
            "high": np.maximum.reduceat(high, starts).tolist(),
        }
    return found


def _heat(run: RecordedRun, peaks: Sequence[int]) -> dict[str, Any]:
    """Return the largest norm over usual norm, by tensor and span of steps.

    A character for each: ``0`` (usual) to ``9`` (22 times or more) in steps of
    a factor of 1.41, ``x`` for Inf or NaN, a blank for nothing known. The spans
    divide all recorded steps evenly, as the curves' axis does.
    """
    places = np.arange(len(run.tensor_steps))
    if len(places) > _MAX_ROWS:
        places = np.union1d(
            np.linspace(0, len(places) - 1, _MAX_ROWS).astype(int),
            np.flatnonzero(np.isin(run.tensor_steps, peaks)),
        )
    if not len(places):
        return {"groups": []}
    norms, steps = run.tensors("norm", places), run.tensor_steps[places]
    first, last = int(run.step[0]), int(run.step[-1])
    num = min(_NUM_COLUMNS, last - first + 1)
    column_of = (steps - first) * num // (last - first + 1)
    past_medians: list[np.ndarray] = []
    levels = np.full((len(run.keys), num), np.nan)
    for column in np.unique(column_of).tolist():
        part = norms[column_of == column]
        known = np.where(np.isfinite(part) & (part > 0), part, np.nan)
        with np.errstate(all="ignore"):
            past = np.stack(
                past_medians[-_NUM_PAST_COLUMNS:] or [medians(known)]
            )
            largest = np.where(np.isnan(known), -np.inf, known).max(0)
            level = np.clip(
                np.round(2 * np.log2(largest / medians(past))), 0, 9
            )
        levels[:, column] = np.where(np.isinf(part).any(0), np.inf, level)
        past_medians.append(medians(known))
    return {"groups": heat_groups(levels, run.keys, map(layer_of, run.keys))}


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
            "levels": _letters(filled[its].max(0)),
            "tensors": [[names[i], _letters(filled[i])] for i in its],
        }
        for name, its in rows.items()
    ]


def _letters(levels: np.ndarray) -> str:
    return "".join(
        " " if level < 0 else "x" if level > 9 else str(round(level))
        for level in levels.tolist()
    )
