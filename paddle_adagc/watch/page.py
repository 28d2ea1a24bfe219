# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A page: one HTML file that loads nothing, light and dark, at any width.

The data is in the page as JSON. A script shows it with the parts of
``assets/parts.js``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import string
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.files import atomic_write
from paddle_adagc.watch.advice import advise
from paddle_adagc.watch.events import Happening, at_step, find_events
from paddle_adagc.watch.folder import folders_beside
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.tensors import layer_of, medians
from paddle_adagc.watch.text import counted
from paddle_adagc.watch.verdict import verdict_of
from paddle_adagc.watch.what_if import what_if

_NUM_GUILTY = 12
_MAX_EVENTS = 200
_NUMBERS = ("loss", "norm", "left", "shadow_left")
_KINDS = (
    *("step", "norm spike", "norm shift", "gradient nan"),
    *("loss spike", "loss shift", "loss nan"),
)
"""Of events, the worst one last."""


def judge_run(
    run: RecordedRun, step: int | None = None, cases: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what a page or a text shows of a run; no number is NaN or Inf.

    ``step`` is looked at as if an event had begun there.

    Raises:
        ValueError: The step is not recorded, or a case is wrong.
    """
    if step is not None and step not in run.step:
        known = f"{run.step[0]} to {run.step[-1]}" if len(run.step) else "none"
        raise ValueError(
            f"--step {step}: {run.directory} has the steps {known}"
        )
    events = find_events(run)
    if step is not None:
        events = [at_step(run, step, events)]
    worst = max(events, key=_severity, default=None)
    kept = sorted(events, key=_severity)[-_MAX_EVENTS:]
    kept.sort(key=lambda event: event.first)
    facts = run.facts()
    recorded = str(facts.get("shadow") or facts.get("clip"))
    found = {
        "name": run.name,
        "directory": str(run.directory),
        "num_steps": len(run.step),
        "first_step": int(run.step[0]) if len(run.step) else None,
        "last_step": int(run.step[-1]) if len(run.step) else None,
        "num_tensors": len(run.keys),
        **{n: facts.get(n) for n in ("clip", "shadow", "model", "optimizer")},
        "recorded": recorded.partition("(")[0].removeprefix("ClipGradBy"),
        "verdict": verdict_of(run, worst),
        "events": [_as_json(run, event) for event in kept],
        "worst": None if worst is None else kept.index(worst),
        "notes": [*_notes(run, facts)],
        "actions": [] if step is not None else advise(run, worst, events),
    }
    if cases:
        found["what_if"] = what_if(run, cases, worst)
    return plain(found)


def plain(value: Any) -> Any:
    """Replace numbers that JSON does not have by None; round the others."""
    if isinstance(value, dict):
        return {str(key): plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(x) for x in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _severity(event: Happening) -> tuple[bool, int, float]:
    """Order by a loss that is not back, then by kind, then by the loss."""
    excess = event["excess"] if event.has_loss else -1.0
    size = math.inf if math.isnan(excess) else excess
    return event.losses.is_over is False, _KINDS.index(event.kind), size


def _as_json(run: RecordedRun, event: Happening) -> dict[str, Any]:
    guilty = []
    for one in event.finding.guilty[:_NUM_GUILTY]:
        place = np.searchsorted(run.tensor_steps, one.worst_step)
        h = run.tensors("h", np.array([place]))[0, run.keys.index(one.key)]
        h = math.nan if event.skipped else h
        guilty.append({**dataclasses.asdict(one), "h": h})
    losses, number = event.losses, len(event.finding.guilty)
    names = ("kind", "first", "last", "peak")
    return {
        **{name: getattr(event, name) for name in names},
        **{name: event[name] for name in _NUMBERS},
        "before": losses.before and losses.before._asdict(),
        "after": [span._asdict() for span in losses.after],
        "back": losses.back,
        "is_over": losses.is_over,
        "skipped": event.skipped,
        "is_known": event.finding.is_known,
        "num_guilty": number if number or event.finding.is_known else None,
        "guilty": guilty,
    }


def _notes(run: RecordedRun, facts: dict[str, Any]) -> Iterator[str]:
    """Say what holds for the whole run."""
    shared = facts.get("shares_loss_with")
    if isinstance(shared, list) and shared:
        others = ", ".join(map(str, shared[:5]))
        yield f"The loss reaches the parameters of {others}, too"
    for session in run.sessions:
        if session.superseded_from is not None:
            yield (
                f"A later session resumed at step {session.superseded_from:,}; "
                f"the steps from there to {session.steps[-1]:,} that session "
                f"{session.number} recorded are not shown"
            )
    mine = run.directory.resolve()
    stem, _, number = mine.name.rpartition("-")
    is_numbered = stem and number.isascii() and number.isdigit()
    first = mine.with_name(stem) if is_numbered else mine
    beside = [p.name for p in folders_beside(first) if p.resolve() != mine]
    if beside:
        yield f"Other runs were recorded beside it: {', '.join(beside[:5])}"
    if skipped := np.count_nonzero(run.column("skipped") == 1):
        yield f"skip_above left out {counted(skipped)}"
    if overflows := np.count_nonzero(run.column("overflow") == 1):
        yield f"Left out by the GradScaler: {counted(overflows)}"
    if len(run.step) and not np.isfinite(run.column("loss")).any():
        yield "No finite loss was recorded"
    if not len(run.tensor_steps):
        yield "No tensor was measured"


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
        notice=_read("uplot/LICENSE"),
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
        if name == "global_grad_norm":  # else it is that of finite tensors
            known &= ~(run.column("nonfinite") > 0)
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
