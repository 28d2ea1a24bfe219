# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What to do about a run, as far as its numbers tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddle_adagc.watch.events import Happening, rate_change
from paddle_adagc.watch.store import RecordedRun
from paddle_adagc.watch.what_if import settings_of

_OFTEN = 3  # events that grow over several steps
_MOST_SKIPPED = 10
_SHORT = 4  # steps that one batch may take
_MUCH = 1.5  # times AdaGC's that a clip left


def advise(
    run: RecordedRun, event: Happening | None, events: Sequence[Happening]
) -> list[dict[str, str]]:
    """Return what to do now: ``code``, ``title``, and what to type or read."""
    found: list[dict[str, str]] = []
    if event is not None:
        found = _about(run, event, [e for e in events if e.kind != "tensor"])
    if run.end["kind"] in ("exception", "rank", "unknown", "signal"):
        found = [a for a in found if a["code"] != "nothing"]
        if not any(a["code"] == "return" for a in found):
            last = run.end.get("step")
            step = int(run.step[-1]) if len(run.step) else 0
            step = last if type(last) is int else step
            title = "To go on, resume"
            found.insert(0, _return(run, step + 1, title))
    if run.end["kind"] == "disk":
        text = "Free space, or choose another folder with --record"
        found.insert(0, _advice("disk", "Make room for the record", text))
    return found


def _about(
    run: RecordedRun, event: Happening, spikes: Sequence[Happening]
) -> list[dict[str, str]]:
    found = []
    clip = str(run.sessions[-1].facts.get("clip")) if run.sessions else ""
    is_adagc = clip.startswith("ClipGradByAdaGC")
    has_loss = "loss" in event.series
    is_rate = event.cause == "rate" or (event.cause == "stale" and has_loss)
    batches = [e for e in spikes if _may_be_batch(e)]
    recurs = len([e for e in spikes if e not in batches]) >= _OFTEN
    left_more = event.left > _MUCH * event.shadow_left and not is_adagc
    is_over = event.kind == "spike" and event.is_over
    if is_over or not has_loss:
        is_local = event.kind == "shift" and event.cause in ("tensor", "layer")
        if not (is_rate or recurs or left_more or is_local):
            return [_nothing(event, is_adagc)]
    else:
        first = min([event.first, *(g.onset for g in event.finding.guilty)])
        found.append(_return(run, first, "Return to a checkpoint"))
    if event.cause == "rate":
        step, old, new = rate_change(run, event.first) or (0, 0.0, 0.0)
        text = f"{old:.3g}, as before step {step}, in place of {new:.3g}"
        found.append(_advice("rate", "Lower the learning rate", text))
    elif event.cause == "period":
        text = f"{event.why}: the order of the data, or a schedule"
        found.append(_advice("look", "Look at what recurs", text))
    elif is_rate or (recurs and event not in batches):
        text = "The loss rises over several steps, as no single batch makes it"
        found.append(_advice("rate", "Lower the learning rate", text))
    elif event in batches:
        spans = [[e.first, e.last] for e in batches[:_MOST_SKIPPED]]
        first = spans[0][0]
        title = "Skip these samples, if the batch is to blame"
        text = (
            f"skip_data_intervals={spans} (PaddleNLP's argument, on resuming "
            f"from a checkpoint before step {first})"
        )
        found.append(_advice("skip", title, text))
    if event.cause in ("tensor", "layer", "nonfinite"):
        names = ", ".join(g.key for g in event.finding.guilty[:3])
        found.append(_advice("look", "Look at", names))
    if left_more:
        found.append(_switch(run, event))
    return found


def _may_be_batch(event: Happening) -> bool:
    """Whether it began at its height, and was short."""
    is_short = event.last - event.first < _SHORT
    is_sudden = event.peak - event.first <= 1 and event.norm_first is None
    causes = ("all", "several", "labels", "nonfinite", "")
    return (
        event.kind != "tensor"
        and is_short
        and is_sudden
        and (event.cause in causes)
    )


def _nothing(event: Happening, is_adagc: bool) -> dict[str, str]:
    parts = []
    if math.isfinite(event.left):
        left = f"The clip left a norm of {event.left:.3g}"
        if not is_adagc and math.isfinite(event.shadow_left):
            left += f", AdaGC would have left {event.shadow_left:.3g}"
        parts.append(left)
    if event.back is not None and "loss" in event.series:
        parts.append(f"the loss was usual from step {event.back} on")
    elif event.kind == "tensor":
        parts.append("neither the loss nor the global norm rose")
    return _advice("nothing", "Nothing to do", ", and ".join(parts))


def _return(run: RecordedRun, step: int, title: str) -> dict[str, str]:
    found = checkpoint_before(run.directory, step)
    text = str(found) if found else f"the last one before step {step}"
    return _advice("return", title, text)


def _switch(run: RecordedRun, event: Happening) -> dict[str, str]:
    facts = run.sessions[-1].facts
    text = (
        f"AdaGC would have left {event.shadow_left:.3g} of the norm "
        f"{event.norm:.4g}, the clip left {event.left:.3g}: adagc-run"
    )
    settings = settings_of(facts.get("shadow"))
    if settings is not None:
        text += f" --lambda-abs {settings.lambda_abs} --init {settings.init}"
    text += " -- COMMAND (of a Trainer), or record.switch() in your loop"
    return _advice("switch", "Switch to AdaGC", text)


def checkpoint_before(directory: Path, step: int) -> Path | None:
    """Return the newest checkpoint beside the record without a step."""
    found = {}
    for folder in (directory.parent, directory.parent.parent):
        for path in folder.glob("checkpoint-*"):
            number = path.name.removeprefix("checkpoint-")
            is_number = number.isascii() and number.isdigit()
            if is_number and len(number) < 16 and int(number) < step:
                found[int(number)] = path
    return found[max(found)] if found else None


def _advice(code: str, title: str, text: str) -> dict[str, Any]:
    return {"code": code, "title": title, "text": text}
