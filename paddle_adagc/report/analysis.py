# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a record says: events, their causes, and what is to do. NumPy alone."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddle_adagc.record.files import RecordedRun
from paddle_adagc.record.judge import (
    SPIKES,
    Finding,
    cause_of,
    find_guilty,
    is_quiet,
    medians,
    merged,
)
from paddle_adagc.record.words import note
from paddle_adagc.report.actions import actions_for
from paddle_adagc.report.pictures import curves, heat
from paddle_adagc.report.what_if import recorded_clip
from paddle_adagc.stability.alarms import FIRST_JUDGED, NORMAL_CONSISTENCY

_USUAL_STEPS = 128
_BEFORE = 256  # rows before an event that say what is usual
_NUM_GUILTY = 12
_STALE = 4.0  # times the usual norm


def analyse(run: RecordedRun, step: int | None = None) -> dict[str, Any]:
    """Return everything that a page or text shows of a run, as JSON values.

    Numbers that are not finite are None.

    Args:
        run: The record.
        step: Look at this step as if an alarm had begun there.

    Raises:
        ValueError: The step is not recorded.
    """
    if step is not None and step not in run.step:
        raise ValueError(
            f"--step {step}: {run.directory} has the steps "
            f"{run.step.min(initial=0)} to {run.step.max(initial=0)}"
        )
    spans = [(step, step, [])] if step is not None else _spans(run)
    events = [_event(run, *span) for span in spans]
    events = [
        event
        for event in events
        if event["kind"] and (event["guilty"] or not _is_quiet(event))
    ]
    worst = max(events, key=_severity, default=None)
    session = run.sessions[-1] if run.sessions else {}
    result = {
        "name": run.name,
        "directory": str(run.directory),
        "num_steps": len(run.step),
        "first_step": int(run.step[0]) if len(run.step) else None,
        "last_step": int(run.step[-1]) if len(run.step) else None,
        "num_sessions": len(run.sessions),
        "num_tensors": len(run.keys),
        "clip": session.get("clip"),
        "shadow": session.get("shadow"),
        "recorded": _short_name(recorded_clip(session)),
        "events": events,
        "worst": events.index(worst) if worst is not None else None,
        "notes": _notes(run),
        "curves": curves(run, events),
        "heat": heat(run),
        "settings": _settings(run, session),
        "actions": [],
    }
    if worst is not None and all(map(_is_quiet, events)):
        result["verdict"] = _quiet(run, worst, len(events))
        return finite(result)
    if (
        worst is not None
        and worst["kind"] != "calm"
        and worst["worst_step"] not in worst["skipped"]
    ):
        result["actions"] = actions_for(run, worst, session)
    result["verdict"] = _verdict(run, worst, len(events), result["recorded"])
    return finite(result)


def _short_name(clip: str) -> str:
    """Return what the field calls a clip: AdaGC for ClipGradByAdaGC(...)."""
    return clip.partition("(")[0].removeprefix("ClipGradBy")


def finite(value: Any) -> Any:
    """Replace numbers that JSON does not have by None; round the others."""
    if isinstance(value, dict):
        return {key: finite(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(x) for x in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


# ---- events -----------------------------------------------------------------


def _spans(run: RecordedRun) -> list[tuple[int, int, list[dict[str, Any]]]]:
    """Join alarms of several series that lie close to each other."""
    spikes = [alarm for alarm in run.alarms if alarm["series"] in SPIKES]
    return [
        (start, end, [a for a in spikes if start <= a["start"] <= end])
        for start, end in merged((a["start"], a["end"]) for a in spikes)
    ]


def _event(
    run: RecordedRun, start: int, end: int, alarms: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    inside = (run.step >= start) & (run.step <= end)
    before = run.step < start
    loss, norm = run.column("loss"), run.column("global_grad_norm")
    worst = _worst_step(run, inside, alarms)
    at = int(np.flatnonzero(run.step == worst)[0])
    places = np.flatnonzero(run.tensor_steps <= end)[-(_BEFORE + end - start) :]
    steps = run.tensor_steps[places]
    finding = find_guilty(
        steps, run.tensors("norm", places), run.keys, start, end
    )
    usual_loss = _median(loss[before])
    series = sorted({alarm["series"] for alarm in alarms})
    kind = cause_of(finding.kind, series)
    is_skipped = run.column("skipped") == 1

    def of_clip(name: str) -> float:
        return math.nan if is_skipped[at] else run.column(name)[at]

    return {
        "start": start,
        "end": end,
        "worst_step": worst,
        "elapsed": float(np.nansum(run.column("step_seconds")[: at + 1])),
        "series": series,
        "kind": kind if alarms else kind or "calm",
        "share": finding.share,
        "layers": list(dict.fromkeys(g.layer for g in finding.guilty)),
        "loss": loss[at],
        "usual_loss": usual_loss,
        "norm": norm[at],
        "clipped_norm": of_clip("clipped_grad_norm"),
        "shadow_norm": of_clip("shadow_clipped_grad_norm"),
        "skipped": run.step[inside & is_skipped].tolist(),
        "recovered_after": _recovered_after(run, start, end),
        "guilty": _guilty(run, finding),
        "num_guilty": len(finding.guilty),
        "samples": [
            [row["step"], row["samples"]]
            for row in run.rows
            if start <= row["step"] <= min(end, start + 9)
            and _is_range(row.get("samples"))
        ],
    }


def _is_range(samples: Any) -> bool:
    """Whether it is the first sample of a step, and the one after the last."""
    is_pair = isinstance(samples, list) and len(samples) == 2
    return is_pair and all(isinstance(x, int) for x in samples)


def _worst_step(
    run: RecordedRun, inside: np.ndarray, alarms: Sequence[dict[str, Any]]
) -> int:
    for series in ("loss", "nonfinite", "global_grad_norm", "tensor_norm"):
        for alarm in alarms:
            if alarm["series"] == series:
                return int(alarm["worst_step"])
    return int(run.step[inside][0])


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)][-_USUAL_STEPS:]
    return float(np.median(known)) if len(known) else math.nan


def _recovered_after(run: RecordedRun, start: int, end: int) -> int | None:
    """Steps from the start until the loss is usual three times in a row."""
    loss = run.column("loss")
    known = loss[run.step < start]
    known = known[np.isfinite(known)][-_USUAL_STEPS:]
    if len(known) < 8:
        return None
    middle = np.median(known)
    spread = NORMAL_CONSISTENCY * np.median(np.abs(known - middle))
    bound = middle + max(4 * spread, 0.02 * abs(middle))
    later = np.flatnonzero(run.step >= start)
    is_usual = loss[later] <= bound
    in_a_row = 0
    for place, usual in zip(later.tolist(), is_usual.tolist(), strict=True):
        in_a_row = in_a_row + 1 if usual else 0
        if in_a_row == 3:
            return int(run.step[place]) - 2 - start
    return None


def _guilty(run: RecordedRun, finding: Finding) -> list[dict[str, Any]]:
    """Return the first of the guilty, with what AdaGC does to each."""
    rows, skipped = [], run.step[run.column("skipped") == 1]
    for guilty in finding.guilty[:_NUM_GUILTY]:
        place = int(np.flatnonzero(run.tensor_steps == guilty.worst_step)[0])
        column = run.keys.index(guilty.key)
        h = run.tensors("h", slice(place, place + 1))[0, column]
        if guilty.worst_step in skipped:
            h = math.nan
        is_cut = h < 1 and math.isfinite(guilty.norm)
        threshold = h * guilty.norm if is_cut else math.nan
        more = {"threshold": threshold, "h": h}
        rows.append({**dataclasses.asdict(guilty), **more})
    return rows


def _is_quiet(event: dict[str, Any]) -> bool:
    return is_quiet(event["series"], (g["ratio"] for g in event["guilty"]))


def _quiet(
    run: RecordedRun, worst: dict[str, Any], num_events: int
) -> dict[str, Any]:
    """Return the verdict on a run with quiet events alone."""
    farthest, tensors = _farthest(worst), "1 tensor"
    if worst["num_guilty"] > 1:
        tensors = f"{worst['num_guilty']} tensors"
    times = "once" if num_events == 1 else f"{num_events} times"
    text = (
        f"No spike in {len(run.step):,} steps. Tensors left their usual norms "
        f"{times}, and neither the loss nor the global norm rose; the farthest "
        f"at step {worst['worst_step']:,}: {tensors}, "
        f"{farthest['key']} at {farthest['ratio']:.3g} times."
    )
    return {"kind": "calm", "text": text}


def _farthest(event: dict[str, Any]) -> dict[str, Any]:
    """Return the guilty tensor that is farthest from its usual norm."""
    return max(event["guilty"], key=lambda guilty: guilty["ratio"])


def _severity(event: dict[str, Any]) -> tuple[bool, bool, bool, float]:
    rise = event["loss"] - event["usual_loss"]
    has_loss = "loss" in event["series"]
    ratio = _farthest(event)["ratio"] if event["guilty"] else 0.0
    size = rise if has_loss and math.isfinite(rise) else ratio
    rises = not _is_quiet(event)
    return event["kind"] == "nonfinite", has_loss, rises, float(size)


def _verdict(
    run: RecordedRun, event: dict[str, Any] | None, num_events: int, name: str
) -> dict[str, Any]:
    """Return the kind of the run and a sentence; ``name``: of the clip."""
    if event is None:
        return {"kind": "calm", "text": _calm(len(run.step))}
    step, kind = event["worst_step"], event["kind"]
    names = [g["key"] for g in event["guilty"]]
    usual = "No tensor left its usual norm"
    if not len(run.tensor_steps):
        usual = "No tensor was measured"
    elif step not in run.tensor_steps:
        usual = "The tensors of this step were not kept"
    cause = {
        "batch": f"{event['share']:.0%} of the tensors at once: one batch, not "
        "one layer.",
        "layer": f"One layer: {event['layers'][0] if names else ''}.",
        "tensor": f"One tensor: {names[0] if names else ''}.",
        "nonfinite": f"Inf or NaN in the gradient of "
        f"{names[0] if names else ''}"
        + ", although the loss is finite."
        * math.isfinite(event["loss"]),
        "several": f"{event['num_guilty']} tensors, first "
        f"{names[0] if names else ''}.",
        "loss": f"{usual}: the loss alone rose.",
        "norm": f"{usual}: the global norm rose.",
        "calm": f"{usual}.",
    }[kind]
    if kind == "calm" and np.searchsorted(run.step, step) < FIRST_JUDGED:
        cause = f"the first {FIRST_JUDGED} steps are not judged."
    elapsed = datetime.timedelta(seconds=round(event["elapsed"]))
    into = f" ({elapsed} into the run)" * bool(elapsed)
    parts = [f"Step {step:,}{into}: {_loss_text(event)}; {cause}"]
    if skipped := event["skipped"]:
        steps = "step was" if len(skipped) == 1 else "steps were"
        parts.append(f"{len(skipped)} {steps} not made (skip_above).")
    clipped = event["clipped_norm"]
    if math.isfinite(clipped):
        norm, left = f"{event['norm']:.3g}", f"{clipped:.3g}"
        cut = f"The clip cut the norm {norm} to {left}."
        parts.append(cut if left != norm else f"The norm {norm} passed whole.")
    if math.isfinite(event["shadow_norm"]):
        parts.append(f"{name} would have left {event['shadow_norm']:.3g}.")
    after = event["recovered_after"]
    if after is not None and "loss" in event["series"]:
        parts.append(
            f"The loss was usual again after {after} "
            f"{'step' if after == 1 else 'steps'}."
        )
    elif "loss" in event["series"]:
        parts.append("The loss has not recovered.")
    if num_events > 1:
        more = num_events - 1
        parts.append(f"{more} more {'event' if more == 1 else 'events'}.")
    return {"kind": kind, "text": " ".join(parts)}


def _calm(num_steps: int) -> str:
    judged = num_steps - FIRST_JUDGED
    if judged <= 0:
        return (
            f"Too short to judge: {num_steps} steps, and the first "
            f"{FIRST_JUDGED} are not judged."
        )
    steps = "step" if judged == 1 else "steps"
    return (
        f"Calm: no spike in {judged:,} judged {steps} (the first "
        f"{FIRST_JUDGED} are not judged)."
    )


def _loss_text(event: dict[str, Any]) -> str:
    loss, usual = event["loss"], event["usual_loss"]
    if math.isnan(loss):
        return "loss not recorded" if math.isnan(usual) else "loss NaN"
    return f"loss {loss:.4g}, usual {usual:.4g}"


def _notes(run: RecordedRun) -> list[str]:
    """Return what holds for the whole run."""
    notes = [
        note(alarm) for alarm in run.alarms if alarm["series"] not in SPIKES
    ]
    num_skipped = int(np.nansum(run.column("skipped")))
    if num_skipped:
        notes.append(f"{num_skipped} steps were not made (skip_above)")
    num_overflows = int(np.nansum(run.column("overflow")))
    if num_overflows:
        notes.append(f"The GradScaler left out {num_overflows} steps: overflow")
    if np.isnan(run.column("loss")).all() and len(run.step):
        notes.append("No loss was recorded: no scalar was differentiated")
    if not len(run.tensor_steps):
        notes.append("No tensor was measured")
    return notes


def _settings(run: RecordedRun, session: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "optimizer": session.get("optimizer"),
        "epsilon": session.get("epsilon"),
    }
    small = run.column("small_second_moment")
    if len(small := small[~np.isnan(small)]):
        found["small_second_moment"] = small[-1]
    beta2 = session.get("beta2")
    if beta2 is not None and beta2 < 1:
        found["beta2"] = beta2
        found["beta2_memory"] = 1 / (1 - beta2)
    places = np.arange(len(run.tensor_steps))[-64:]
    gamma = run.tensors("gamma", places)
    if len(places) and np.isfinite(gamma[-1]).any():
        usual = medians(run.tensors("norm", places))
        with np.errstate(all="ignore"):
            ratio = gamma[-1] / usual
        stale = np.flatnonzero((ratio > _STALE) | (ratio < 1 / _STALE))
        found["num_stale"] = len(stale)
        found["stale"] = [run.keys[i] for i in stale[:5]]
    return found
