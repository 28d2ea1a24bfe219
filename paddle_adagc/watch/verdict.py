# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a record says of its run, as JSON values: verdict, events, advice."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddle_adagc.watch.advice import advise
from paddle_adagc.watch.events import Happening, at_step, explain, happenings
from paddle_adagc.watch.judge import FIRST_JUDGED, Event
from paddle_adagc.watch.reading import folders_beside
from paddle_adagc.watch.store import RecordedRun
from paddle_adagc.watch.tensors import medians
from paddle_adagc.watch.what_if import what_if

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
    verdict = _verdict(run, worst, events)
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


# ---- in words ---------------------------------------------------------------


def _verdict(
    run: RecordedRun, event: Happening | None, events: Sequence[Happening]
) -> dict[str, Any]:
    """Return the kind of the run and the four parts of what is known."""
    end = _how_it_ended(run)
    if event is None or event.kind == "tensor":
        kind, what = "calm", "Calm: neither the loss nor the global norm rose "
        what += f"out of the usual in {len(run.step):,} steps."
        if len(run.step) <= FIRST_JUDGED:
            kind = "short"
            what = (
                f"Too short to judge: {len(run.step)} steps, and the first "
                f"{FIRST_JUDGED} are not judged."
            )
        if not _is_well(run):
            kind = "stopped"
            what = what.removeprefix("Calm: ").capitalize()
        parts = {"what": what, "did": "", "who": "", "why": ""}
        if event is not None:
            parts["who"] = _quiet(event, len(events))
    else:
        kind = event.kind
        parts = {
            "what": _what(run, event, events),
            "did": _did(run, event, events),
            "who": _who(event),
            "why": event.why and event.why + ".",
        }
    text = [end, *parts.values()] if not _is_well(run) else [*parts.values()]
    return {
        "kind": kind,
        "end": end,
        **parts,
        "text": " ".join(filter(None, text)),
    }


def _is_well(run: RecordedRun) -> bool:
    return run.end["kind"] in ("finished", "running")


def _how_it_ended(run: RecordedRun) -> str:
    """Say how the newest session ended; "" if that is not known."""
    end = run.end
    step, text = end.get("step"), str(end.get("text") or "")
    at = f" after step {step}" if type(step) is int else ""
    since = end.get("seconds_since")
    ago = ""
    if isinstance(since, (int, float)):
        ago = f"{datetime.timedelta(seconds=round(min(since, 1e9)))}"
    said = {
        "finished": f"The run finished{at}" + (f": {text}." if text else "."),
        "running": f"The run goes on{at}.",
        "exception": f"The run ended{at} by {text or 'an exception'}.",
        "signal": f"The run was ended{at} by {text or 'a signal'}.",
        "disk": f"The record ends{at}: {text or 'the disk refused it'}. The "
        "training may have gone on.",
        "rank": f"The record ends{at}: {text or 'a rank was lost'}.",
        "replaced": f"The record ends{at}: a newer run writes it.",
        "unknown": f"No word{at}" + (f" since {ago}." if ago else "."),
    }[end["kind"]]
    loss = end.get("last_loss")
    if isinstance(loss, (int, float)) and not math.isfinite(loss):
        said += " The last loss was not finite."
    dropped = end.get("dropped")
    if type(dropped) is int and dropped > 0:
        said += f" {dropped} steps were dropped, as the disk was too slow."
    return said


def _what(
    run: RecordedRun, event: Happening, events: Sequence[Happening]
) -> str:
    until = run.step < event.first
    seconds = np.nansum(run.column("step_seconds")[until])
    into = datetime.timedelta(seconds=round(float(min(seconds, 1e9))))
    text = f"Step {event.first:,}"
    text += f" ({into} into the run)" * bool(into) + ": "
    if "loss" in event.series:
        if not math.isfinite(event.loss):
            text += f"the loss was not finite in step {event.peak:,}"
        else:
            text += f"the loss rose to {event.loss:.4g}"
            text += f" (step {event.peak:,})" * (event.peak != event.first)
        if math.isfinite(event.usual_loss):
            text += f", usual {event.usual_loss:.4g}"
        if event.norm_first is not None:
            text += ". The norm rose first, the loss later"
    elif "step" in event.series:
        text += f"loss {event.loss:.4g}, usual {event.usual_loss:.4g}"
    elif "nonfinite" in event.series:
        text += "a gradient with Inf or NaN"
        if math.isfinite(event.loss):
            text += f", although the loss is {event.loss:.4g}"
    else:
        text += "the gradients' norm rose"
    if math.isfinite(event.norm):
        text += f"; global norm {event.norm:.4g}"
        if math.isfinite(event.usual_norm):
            text += f", usual {event.usual_norm:.4g}"
        text += _left(event)
    others = len([e for e in events if e.kind != "tensor"]) - 1
    text += f". {others} more {'event' if others == 1 else 'events'}" * (
        others > 0
    )
    return text + "."


def _left(event: Happening) -> str:
    if event.skipped:
        count = len(event.skipped)
        return f"; {count} {'step was' if count == 1 else 'steps were'} skipped"
    if not math.isfinite(event.left):
        return ""
    text = f"; the clip left {event.left:.3g}"
    if math.isfinite(event.shadow_left):
        text += f", AdaGC would have left {event.shadow_left:.3g}"
    return text


def _did(
    run: RecordedRun, event: Happening, events: Sequence[Happening]
) -> str:
    if "loss" not in event.series:
        return ""
    parts = []
    num = int(
        np.count_nonzero((run.step >= event.first) & (run.step <= event.last))
    )
    if math.isfinite(event.excess):
        noise = f" ± {event.noise:.2g}" * math.isfinite(event.noise)
        parts.append(
            f"Over {num} {'step' if num == 1 else 'steps'} the loss summed to "
            f"{event.excess:.3g}{noise} above usual."
        )
    last = int(run.step[-1])
    if event.kind == "end":
        parts.append(f"It was not finite to the record's end, step {last:,}.")
    elif event.kind == "shift" and math.isfinite(event.after):
        parts.append(
            f"It stayed higher: from then to the record's end, step {last:,}, "
            f"its median is {event.after:.3g} above usual."
        )
    elif event.kind == "shift":
        parts.append(f"It has not come back by the last step, {last:,}.")
    elif event.is_over and event.back is not None:
        later = [e.first for e in events if e.first > event.back]
        until = f"the record's end, step {last:,}"
        if later:
            until = f"the next event, step {min(later):,}"
        parts.append(f"It was usual again from step {event.back:,} to {until}.")
    else:
        parts.append("The record ends too early to tell if it came back.")
    return " ".join(parts)


def _who(event: Happening) -> str:
    finding = event.finding
    if not finding.is_known:
        return ""
    if not finding.guilty:
        if finding.share >= 0.3 or event.norm > 2 * event.usual_norm:
            share = f"{finding.share:.0%} of the tensors"
            return (
                f"No single tensor stands out; {share} rose somewhat at once."
            )
        return "No tensor left its usual norm."
    first = finding.guilty[0]
    ratio = f"{first.ratio:.3g} times its usual norm"
    if math.isinf(first.ratio):
        ratio = "Inf or NaN"
    text = f"It began in {first.key} at step {first.onset:,} ({ratio})"
    if finding.share >= 0.1 and len(finding.guilty) > 1:
        text += f"; {finding.share:.0%} of the tensors rose at once"
    return text + "."


def _quiet(event: Happening, num: int) -> str:
    farthest = max(event.finding.guilty, key=lambda g: g.ratio, default=None)
    if farthest is None:
        return ""
    times = "once" if num == 1 else f"{num} times"
    return (
        f"Tensors left their usual norms {times}, the farthest {farthest.key} "
        f"at step {farthest.worst_step:,}, {farthest.ratio:.3g} times."
    )


def _notes(run: RecordedRun, states: Sequence[Event]) -> list[str]:
    """Return what holds for the whole run."""
    notes = [event.text for event in states]
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
    others = [p for p in folders_beside(first) if p.resolve() != mine]
    if others:
        names = ", ".join(path.name for path in others[:5])
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
