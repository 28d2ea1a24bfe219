# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What other settings would have done in calm steps and at an event."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paddle_adagc.watch.events import Happening
from paddle_adagc.watch.replay import Settings, replay
from paddle_adagc.watch.store import RecordedRun

DEFAULTS = ("lambda_rel=1.04", "lambda_rel=1.2", "lambda_rel=2", "lambda_rel=4")
OPEN_LOOP = (
    "An open loop: under AdaGC the weights, and so the later norms, would have "
    "been others. On two runs of 600 steps the replay of GlobalGC's norms was "
    "within 0.02 of AdaGC's own share of clipped tensors and median h, "
    "measured over 100 steps each."
)
_NUM_ROWS = 300
_NUM_FIRST = 100
"""First rows, in which a rule settles: they are not counted."""

_OF_WARM_UP = ("init", "t_start", "lambda_abs", "strict")
_MAX_TEXT = 10_000


def what_if(
    run: RecordedRun, cases: Sequence[str], event: Happening | None
) -> dict[str, Any]:
    """Replay the rows before an event, or the last ones, under each case.

    A case is ``lambda_rel=1.2,beta=0.98``, arguments of AdaGC. Overrides of a
    record are not followed: they are expressions that a stranger may have
    written.

    Returns:
        ``rows``: for each case ``case``, ``calm_clipped`` (share of the
        tensors), ``calm_h_median``, and ``event_h_median``, ``event_h_min``;
        the first is what the run's own clip did. ``note`` says what they are.

    Raises:
        ValueError: A case is wrong.
    """
    for case in cases:
        Settings.of(case)
    stop, at = len(run.tensor_steps), None
    if event is not None:
        found = np.flatnonzero(run.tensor_steps == event.peak)
        at = int(found[0]) if len(found) else None
        stop = int(np.searchsorted(run.tensor_steps, event.first))
    places = np.arange(stop)[-_NUM_ROWS:]
    shown = places if at is None else np.append(places, at)
    norms = run.tensors("norm", shown)
    rows = [_own(run, places, event)]
    if len(places) <= _NUM_FIRST:
        note = f"A replay needs more than {_NUM_FIRST} recorded steps"
        note += " before the event" * (event is not None)
        return {"rows": rows, "note": f"{note}, and there are {len(places)}."}
    facts = run.sessions[-1].facts
    known = settings_of(facts.get("shadow")) or settings_of(facts.get("clip"))
    base = dataclasses.asdict(known) if known else {}
    gamma = None
    if places[0] > 0:  # the warm-up is not among the rows
        gamma = run.tensors("gamma", places[:1])[0]
        for case in cases:
            if any(name in case for name in _OF_WARM_UP):
                raise ValueError(
                    f"--what-if {case} is about the warm-up, which is not "
                    f"among the replayed steps {run.tensor_steps[places[0]]} "
                    f"to {run.tensor_steps[places[-1]]}: give --step "
                    f"{run.tensor_steps[: _NUM_ROWS + 1][-1]}"
                )
    base["t_start"] = min(base.get("t_start", _NUM_FIRST), _NUM_FIRST)
    for case in cases:
        h = replay(norms, Settings.of(case, base), gamma).h
        h = np.where(norms > 0, h, np.nan)
        event_h = h[-1] if at is not None else np.array([math.nan])
        rows.append(_row(f"AdaGC {case}", h[_NUM_FIRST : len(places)], event_h))
    note = OPEN_LOOP
    if (np.diff(run.tensor_steps[places]) > 1).any():
        note += (
            " Only one step in some is left of the calm ones, so that gamma "
            "follows more slowly here."
        )
    return {"rows": rows, "note": note}


def _own(
    run: RecordedRun, places: np.ndarray, event: Happening | None
) -> dict[str, Any]:
    """Return what the run's own clip did, from the steps' numbers."""
    calm = np.isin(run.step, run.tensor_steps[places[_NUM_FIRST:]])
    at = run.step == (event.peak if event is not None else -1)
    h = "h_median"
    return {
        "case": "this run's clip",
        "calm_clipped": _of(np.mean, run.column("clipped_fraction")[calm]),
        "calm_h_median": _of(np.median, run.column(h)[calm]),
        "event_h_median": _of(np.median, run.column(h)[at]),
        "event_h_min": _of(np.min, run.column("h_min")[at]),
    }


def _row(case: str, calm: np.ndarray, event: np.ndarray) -> dict[str, Any]:
    return {
        "case": case,
        "calm_clipped": _of(lambda known: np.mean(known < 1), calm),
        "calm_h_median": _of(np.median, calm),
        "event_h_median": _of(np.median, event),
        "event_h_min": _of(np.min, event),
    }


def _of(function: Callable[[np.ndarray], Any], values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(function(known)) if len(known) else math.nan


def settings_of(text: object) -> Settings | None:
    """Return the settings in an AdaGC's ``repr``; None of another clip."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        return None
    if not text.startswith("ClipGradByAdaGC("):
        return None
    names = {field.name for field in dataclasses.fields(Settings)}
    found: dict[str, Any] = {}
    try:
        call: Any = ast.parse(text, mode="eval").body
        for keyword in call.keywords:
            if keyword.arg not in names:
                continue
            if isinstance(keyword.value, ast.Name):  # inf
                found[keyword.arg] = float(keyword.value.id)
            else:
                found[keyword.arg] = ast.literal_eval(keyword.value)
        return Settings.of("", found)
    except (ValueError, TypeError, SyntaxError, AttributeError):
        return None
    except (RecursionError, MemoryError):
        return None
