# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A verdict in sentences: what is known, and nothing else."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddle_adagc.watch.events import Happening
from paddle_adagc.watch.judge import FIRST_JUDGED
from paddle_adagc.watch.store import RecordedRun


def verdict_of(
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
    elif event.back is not None and not event.is_over:
        parts.append(
            f"It came down from step {event.back:,} on, but its median to the "
            f"record's end, step {last:,}, is {event.after:.3g} above usual."
        )
    elif event.back is not None:
        later = [e.first for e in events if e.first > event.back]
        until = f"the record's end, step {last:,}"
        if later:
            until = f"the next event, step {min(later):,}"
        parts.append(
            f"It was usual again from step {event.back:,} to {until}"
            + f" (median {event.usual_loss + event.after:.4g})." * (not later)
            + "." * bool(later)
        )
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
