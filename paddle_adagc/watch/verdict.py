# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a record says of its run, as JSON values: verdict, events, advice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddle_adagc.watch.advice import advise
from paddle_adagc.watch.events import Happening, at_step, explain, happenings
from paddle_adagc.watch.judge import Event
from paddle_adagc.watch.reading import folders_beside
from paddle_adagc.watch.store import RecordedRun
from paddle_adagc.watch.tensors import medians
from paddle_adagc.watch.what_if import what_if
from paddle_adagc.watch.words import verdict_of

_NUM_GUILTY = 12
_MAX_EVENTS = 200
_STALE = 4.0  # times the usual norm
_SEVERITY = {"end": 4, "shift": 3, "spike": 2, "tensor": 1}


def judge_run(
    run: RecordedRun, step: int | None = None, cases: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what a page or a text shows of a run; no number is NaN or Inf.

    ``kind`` of the verdict: that of the worst event, ``"calm"``, ``"short"``,
    or ``"stopped"`` where nothing but the end of the run is to tell.

    Args:
        run: The record.
        step: Look at this step as if an event had begun there.
        cases: What to replay, see :func:`.what_if`; none: no replay.

    Raises:
        ValueError: The step is not recorded, or a case is wrong.
    """
    if step is not None and step not in run.step:
        known = f"{run.step[0]} to {run.step[-1]}" if len(run.step) else "none"
        raise ValueError(
            f"--step {step}: {run.directory} has the steps {known}"
        )
    events, states = happenings(run)
    if step is not None:
        events = [at_step(run, step)]
    for event in events:
        explain(run, event, events)
    worst = max(events, key=_severity, default=None)
    actions = advise(run, worst, events)
    if step is not None:
        actions = []
    facts = run.sessions[-1].facts if run.sessions else {}
    kept = sorted(sorted(events, key=_severity)[-_MAX_EVENTS:], key=_first)
    verdict = verdict_of(run, worst, events)
    found = {
        "name": run.name,
        "directory": str(run.directory),
        "num_steps": len(run.step),
        "first_step": int(run.step[0]) if len(run.step) else None,
        "last_step": int(run.step[-1]) if len(run.step) else None,
        "num_sessions": len(run.sessions),
        "num_tensors": len(run.keys),
        "clip": facts.get("clip"),
        "shadow": facts.get("shadow"),
        "recorded": _short(facts.get("shadow") or facts.get("clip")),
        "model": facts.get("model"),
        "optimizer": facts.get("optimizer"),
        "end": run.end,
        "verdict": verdict,
        "events": [_as_json(run, event) for event in kept],
        "worst": kept.index(worst) if worst is not None else None,
        "notes": _notes(run, states),
        "settings": _settings(run, facts),
        "actions": actions,
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


def _first(event: Happening) -> int:
    return event.first


def _severity(event: Happening) -> tuple[int, float]:
    size = event.excess / event.usual_loss if event.usual_loss else 0.0
    ratios = [g.ratio for g in event.finding.guilty]
    if "loss" not in event.series:
        size = -1 / (1 + max(ratios, default=0.0))
    return _SEVERITY[event.kind], size if not math.isnan(size) else math.inf


def _short(clip: object) -> str:
    """Return what the field calls a clip: AdaGC for ClipGradByAdaGC(...)."""
    return str(clip).partition("(")[0].removeprefix("ClipGradBy")


def _as_json(run: RecordedRun, event: Happening) -> dict[str, Any]:
    found = {
        field.name: getattr(event, field.name)
        for field in dataclasses.fields(event)
        if field.name != "finding"
    }
    h_of = {}
    for guilty in event.finding.guilty[:_NUM_GUILTY]:
        place = np.searchsorted(run.tensor_steps, guilty.worst_step)
        h = run.tensors("h", np.array([place]))[0, run.keys.index(guilty.key)]
        h_of[guilty.key] = math.nan if event.skipped else h
    return {
        **found,
        "share": event.finding.share,
        "num_guilty": len(event.finding.guilty),
        "guilty": [
            {**dataclasses.asdict(g), "h": h_of[g.key]}
            for g in event.finding.guilty[:_NUM_GUILTY]
        ],
        "samples": _samples(run, event),
    }


def _samples(run: RecordedRun, event: Happening) -> list[Any]:
    """Return step, first sample, and last one, where a Trainer told them."""
    found = []
    begin = int(np.searchsorted(run.step, event.first))
    for row in run.rows[begin : begin + 10]:
        span = row.get("samples")
        if row["step"] > event.last or not isinstance(span, list):
            break
        if len(span) == 2 and all(type(x) is int for x in span):
            found.append([row["step"], span[0], span[1] - 1])
    return found


def _notes(run: RecordedRun, states: Sequence[Event]) -> list[str]:
    """Return what holds for the whole run."""
    notes = [event.text for event in states]
    facts = run.sessions[-1].facts if run.sessions else {}
    shared = facts.get("shares_loss_with")
    if isinstance(shared, list) and shared:
        others = ", ".join(map(str, shared[:5]))
        notes.append(f"the loss reaches the parameters of {others}, too")
    for session in run.sessions:
        if session.superseded_from is not None:
            last = int(session.steps[-1])
            notes.append(
                f"a later session resumed at step {session.superseded_from}: "
                f"what session {session.number} recorded from there to step "
                f"{last} is superseded, and not shown"
            )
    mine = run.directory.resolve()
    first = mine
    stem, _, number = mine.name.rpartition("-")
    if stem and number.isascii() and number.isdigit():
        first = mine.with_name(stem)
    beside = [p for p in folders_beside(first) if p.resolve() != mine]
    if beside:
        names = ", ".join(path.name for path in beside[:5])
        notes.append(f"other runs were recorded beside it: {names}")
    skipped = int(np.nansum(run.column("skipped") == 1))
    if skipped:
        notes.append(f"{skipped} steps were skipped (skip_above)")
    overflows = int(np.nansum(run.column("overflow") == 1))
    if overflows:
        notes.append(f"the GradScaler left out {overflows} steps: overflow")
    if np.isnan(run.column("loss")).all() and len(run.step):
        notes.append("no finite loss was recorded")
    if not len(run.tensor_steps):
        notes.append("no tensor was measured")
    return notes


def _settings(run: RecordedRun, facts: dict[str, Any]) -> list[str]:
    """Return what the optimizer and gamma are, as far as it is known."""
    found = []
    beta2 = facts.get("beta2")
    if type(beta2) is float and 0 < beta2 < 1:
        found.append(f"beta2 {beta2}: a memory of {1 / (1 - beta2):.3g} steps")
    small = run.column("small_second_moment")
    if len(small := small[~np.isnan(small)]):
        found.append(
            f"{small[-1]:.0%} of the elements have sqrt(v) below 10 epsilon "
            f"({facts.get('epsilon')})"
        )
    places = np.arange(len(run.tensor_steps))[-64:]
    gamma = run.tensors("gamma", places)
    if len(places) and np.isfinite(gamma[-1]).any():
        with np.errstate(all="ignore"):
            ratio = gamma[-1] / medians(run.tensors("norm", places))
        off = np.flatnonzero((ratio > _STALE) | (ratio < 1 / _STALE))
        names = ": " + ", ".join(run.keys[i] for i in off[:5])
        found.append(
            f"gamma is more than {_STALE:.0f} times off the usual norm in "
            f"{len(off)} tensors" + names * (len(off) > 0)
        )
    return found
