# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What other settings would have done in calm steps and at an event."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddle_adagc.checks import matching_pattern
from paddle_adagc.record.files import RecordedRun

DEFAULTS = ("lambda_rel=1.04", "lambda_rel=1.2", "lambda_rel=2", "lambda_rel=4")
_NUM_ROWS = 300
_NUM_FIRST = 100
"""First rows, in which a rule settles: they are not counted."""

_GLOBAL_NORM = re.compile(r"Gradient Clip By GlobalNorm, global_norm=(\S+)")
"""What Paddle's GlobalGC says of itself."""

_OF_WARM_UP = ("init", "t_start", "lambda_abs", "strict")


def what_if(
    run: RecordedRun,
    cases: Sequence[str],
    event: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Replay the rows before an event, or the last ones, under each case.

    A case is ``lambda_rel=1.2,beta=0.98``, arguments of AdaGC.

    Returns:
        ``num_rows`` and ``is_thinned``; ``rows``: for each case
        ``calm_clipped`` (share of the tensors), ``calm_h_median``, and
        ``event_h_median``, ``event_h_min`` (None without an event);
        ``most_clipped``: see :func:`most_clipped`, of the first case. With too
        few rows none of these, and ``note`` says so. ``early``: see
        :func:`early`.

    Raises:
        ValueError: A case is wrong.
    """
    from paddle_adagc.clips.adagc import ClipGradByAdaGC
    from paddle_adagc.record.replay import replay

    for case in cases:
        ClipGradByAdaGC(**parsed(case))
    stop, at = len(run.tensor_steps), None
    if event is not None:
        found = np.flatnonzero(run.tensor_steps == event["worst_step"])
        at = int(found[0]) if len(found) else None
        stop = int(np.searchsorted(run.tensor_steps, event["start"]))
    places = np.arange(stop)[-_NUM_ROWS:]
    about: dict[str, Any] = {"num_rows": len(places), "early": early(run)}
    if len(places) <= _NUM_FIRST:
        return {
            **about,
            **{"is_thinned": False, "rows": []},
            "note": f"A replay needs more than {_NUM_FIRST} recorded steps"
            + " before the event" * (event is not None)
            + f", and there are {len(places)}.",
        }
    is_thinned = bool((np.diff(run.tensor_steps[places]) > 1).any())
    shown = places if at is None else np.append(places, at)
    norms = run.tensors("norm", shown)
    known, gamma = _arguments(run, int(run.tensor_steps[places[0]])), None
    if places[0] > 0:  # the warm-up is not among the rows
        known = {n: x for n, x in known.items() if n not in _OF_WARM_UP}
        gamma = run.tensors("gamma", places[:1])[0]
        _refuse_warm_up(cases, run.tensor_steps[places])
    rows: list[dict[str, Any]] = []
    most: list[dict[str, Any]] = []
    for case in cases:
        clip = ClipGradByAdaGC(**known | parsed(case))
        h = replay(norms, clip, run.keys, gamma).h
        h = np.where(norms > 0, h, np.nan)
        calm = h[_NUM_FIRST : len(places)]
        most = most if rows else most_clipped(calm, run.keys)
        event_h = h[-1] if at is not None else np.array([math.nan])
        rows.append(
            {
                "case": case,
                "calm_clipped": _of(lambda known: np.mean(known < 1), calm),
                "calm_h_median": _of(np.median, calm),
                "event_h_median": _of(np.median, event_h),
                "event_h_min": _of(np.min, event_h),
            }
        )
    shown_rows = {"is_thinned": is_thinned, "rows": rows}
    return {**about, **shown_rows, "most_clipped": most}


def early(run: RecordedRun) -> dict[str, Any] | None:
    """Return what AdaGC as in the paper would have clipped first.

    Replayed over the norms of a run under GlobalGC, with its threshold.

    Returns:
        ``first_step`` and ``last_step``, and ``clipped``, the share of the
        tensors; None if the run has another clip, or lacks rows.
    """
    from paddle_adagc.clips.adagc import ClipGradByAdaGC
    from paddle_adagc.record.replay import replay

    has_all = np.array_equal(run.tensor_steps[:_NUM_ROWS], range(_NUM_ROWS))
    if not has_all:
        return None
    found = _GLOBAL_NORM.match(str(run.sessions[0].get("clip")))
    if not found:
        return None
    clip = ClipGradByAdaGC(lambda_abs=float(found[1]), strict=True)
    norms = run.tensors("norm", slice(_NUM_ROWS))
    h = replay(norms, clip, run.keys).h[clip.t_start :]
    clipped = _of(
        lambda h: np.mean(h < 1), np.where(norms[clip.t_start :] > 0, h, np.nan)
    )
    return {
        **{"first_step": clip.t_start, "last_step": _NUM_ROWS - 1},
        "clipped": clipped,
    }


def _refuse_warm_up(cases: Sequence[str], steps: np.ndarray) -> None:
    """Refuse a case about the warm-up, which is not among the steps."""
    for case in cases:
        if parsed(case).keys() & {*_OF_WARM_UP}:
            raise ValueError(
                f"--what-if {case} is about the warm-up, and steps {steps[0]} "
                f"to {steps[-1]} are replayed: give --step {_NUM_ROWS}, to "
                "replay the first ones"
            )


def most_clipped(h: np.ndarray, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Name the kinds of tensors that are clipped most often.

    Args:
        h: Factors ``[num_rows, num_tensors]``; NaN without a gradient.
        keys: Names of the tensors; those that differ in numbers alone are of
            one kind.

    Returns:
        At most three of several kinds, the worst first: ``tensors``, a name
        with N for numbers; ``number`` of tensors; ``clipped``, the share of
        their factors, > 0.
    """
    from paddle_adagc.parallel.names import without_indexes

    kinds: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        kinds.setdefault(without_indexes(key), []).append(i)
    found: list[dict[str, Any]] = []
    for kind, columns in kinds.items():
        known = h[:, columns][~np.isnan(h[:, columns])]
        if (known < 1).any():
            row = {"tensors": kind, "number": len(columns)}
            found.append({**row, "clipped": float(np.mean(known < 1))})
    found.sort(key=lambda row: -row["clipped"])
    return found[:3] if len(kinds) > 1 else []


def _arguments(run: RecordedRun, step: int) -> dict[str, Any]:
    """Return those of the AdaGC that acted or followed in a step, if any did.

    Its warm-up is shortened to the rows that are not counted; Inf and NaN do
    not stop a replay; overrides are those of tensors that the record has.
    """
    started = [s for s in run.sessions if s["start"] <= step]
    values = arguments_of(recorded_clip(started[-1]) if started else "")
    if not values:
        return {}
    values.pop("nonfinite", None)
    if overrides := values.get("overrides"):
        used = {matching_pattern("overrides", overrides, k) for k in run.keys}
        values["overrides"] = {p: overrides[p] for p in overrides if p in used}
    return values | {"t_start": min(values["t_start"], _NUM_FIRST)}


def recorded_clip(session: Mapping[str, Any]) -> str:
    """Return the ``repr`` of the clip whose h and gamma are recorded."""
    return str(session.get("shadow") or session.get("clip"))


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments of an AdaGC from its ``repr``; none of another."""
    if not text.startswith("ClipGradByAdaGC("):
        return {}
    call: Any = ast.parse(text, mode="eval").body
    return {
        k.arg: math.inf
        if ast.unparse(k.value) == "inf"
        else ast.literal_eval(k.value)
        for k in call.keywords
    }


def _of(function: Any, values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(function(known)) if len(known) else math.nan


def parsed(case: str) -> dict[str, Any]:
    """Return the arguments of a case."""
    values: dict[str, Any] = {}
    for part in case.split(","):
        argument, has_value, value = part.partition("=")
        if not has_value:
            raise ValueError(f"--what-if {case}: write lambda_rel=1.2,beta=0.9")
        with contextlib.suppress(ValueError):  # else a word: init=warmup_min
            value = json.loads(value)
        values[argument.strip().replace("-", "_")] = value
    return values
