# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A page: one HTML file that loads nothing, light and dark, at any width.

The data is in the page as JSON, with curves and a heat map of each run. A
script shows it with the parts of ``assets/parts.js``.
"""

from __future__ import annotations

import json
import string
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.files import atomic_write
from paddle_adagc.watch.report import plain
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.tensors import layer_of, medians

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
    data = json.dumps(pages, allow_nan=False, separators=(",", ":"))
    text = string.Template(_read("page.html")).substitute(
        style=_read("colors.css", "uplot/uPlot.min.css", "page.css"),
        data=data.replace("<", "\\u003c"),
        script=_read("uplot/uPlot.iife.min.js", "parts.js", "page.js"),
    )
    return atomic_write(path, text)


def _read(*names: str) -> str:
    return "\n".join((_ASSETS / name).read_text("utf-8") for name in names)


def pictures(run: RecordedRun, page: dict[str, Any]) -> dict[str, Any]:
    """Return a run's curves and heat map, as JSON values."""
    curves = _curves(run)
    curves["marks"] = [[e["first"], e["last"]] for e in page["events"]]
    groups = _heat(run, [e["peak"] for e in page["events"]])
    return plain({"curves": curves, "heat": {"groups": groups}})


def _curves(run: RecordedRun) -> dict[str, Any]:
    """Return series with the lowest and highest value of each bin."""
    num_bins = min(_NUM_POINTS, max(len(run.step), 1))
    edges = np.linspace(0, len(run.step), num_bins + 1).astype(int)
    starts = np.unique(edges)[:-1]
    found: dict[str, Any] = {"step": run.step[starts].tolist()}
    for name in _CURVES:
        values = run.column(name)
        known = np.isfinite(values)
        if known.any():
            low, high = (np.where(known, values, x) for x in (np.inf, -np.inf))
            found[name] = {
                "low": np.minimum.reduceat(low, starts).tolist(),
                "high": np.maximum.reduceat(high, starts).tolist(),
            }
    return found


def _heat(run: RecordedRun, peaks: Sequence[int]) -> list[dict[str, Any]]:
    """Return the largest norm over usual norm, by tensor and span of steps.

    The spans divide all recorded steps evenly, as the curves' axis does. A
    level is twice the ratio's logarithm to base 2; a group, a layer, has the
    highest of its tensors.
    """
    places = np.arange(len(run.tensor_steps))
    if len(places) > _MAX_ROWS:
        evenly = np.linspace(0, len(places) - 1, _MAX_ROWS).astype(int)
        is_peak = np.isin(run.tensor_steps, peaks)
        places = np.union1d(evenly, np.flatnonzero(is_peak))
    if not len(places):
        return []
    norms, since = run.tensors("norm", places), run.tensor_steps[places]
    since = since - run.step[0]
    length = int(run.step[-1] - run.step[0]) + 1
    num = min(_NUM_COLUMNS, length)
    column_of = since * num // length
    past: deque[np.ndarray] = deque(maxlen=_NUM_PAST_COLUMNS)
    levels = np.full((len(run.keys), num), np.nan)
    for column in np.unique(column_of).tolist():
        part = norms[column_of == column]
        known = np.where(np.isfinite(part) & (part > 0), part, np.nan)
        mine = medians(known)
        with np.errstate(all="ignore"):
            ratio = np.fmax.reduce(known) / medians(np.stack(past or [mine]))
            level = np.clip(np.round(2 * np.log2(ratio)), 0, 9)
        levels[:, column] = np.where(np.isinf(part).any(0), np.inf, level)
        past.append(mine)
    groups: dict[str, list[int]] = {}
    for i, key in enumerate(run.keys):
        groups.setdefault(layer_of(key), []).append(i)
    filled = np.where(np.isnan(levels), -1, levels)
    return [
        {
            "name": name,
            "levels": _letters(filled[its].max(0)),
            "tensors": [[run.keys[i], _letters(filled[i])] for i in its],
        }
        for name, its in groups.items()
    ]


def _letters(levels: np.ndarray) -> str:
    """Return ``0`` to ``9``, ``x`` for Inf or NaN, a blank for unknown."""
    return "".join(
        " " if level < 0 else "x" if level > 9 else str(round(level))
        for level in levels.tolist()
    )
