# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What to do about a run, as far as its numbers tell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from paddle_adagc.watch.events import Happening
from paddle_adagc.watch.replay import Settings
from paddle_adagc.watch.store import RecordedRun
from paddle_adagc.watch.text import digits

_OFTEN = 3  # events that grow over several steps
_MOST_SKIPPED = 10
_MUCH = 1.5  # times AdaGC's that a clip left

Advice: TypeAlias = dict[str, str]
"""``code``; ``text``, sentences; ``command``, what to type, or ``""``."""


def advise(
    run: RecordedRun, event: Happening | None, events: Sequence[Happening]
) -> list[Advice]:
    """Say what to do now about the worst of the events."""
    found = [] if event is None else [*_about(run, event, events)]
    if run.end["kind"] in ("exception", "rank", "unknown", "signal"):
        found = [one for one in found if one["code"] != "nothing"]
        if not any(one["code"] == "return" for one in found):
            text = "To go on, resume from the last checkpoint."
            found.insert(0, _advice("return", text, _resume(run)))
    elif run.end["kind"] == "disk":
        text = "Free space on the disk, or record into another folder:"
        found.insert(0, _advice("disk", text, "--record DIR"))
    return found


def _about(
    run: RecordedRun, event: Happening, events: Sequence[Happening]
) -> Iterator[Advice]:
    clip = str(run.sessions[-1].facts.get("clip")) if run.sessions else ""
    is_adagc = clip.startswith("ClipGradByAdaGC")
    left_more = event["left"] > _MUCH * event["shadow_left"] and not is_adagc
    has_loss, guilty = "loss" in event.series, event.finding.guilty
    batches = [e for e in events if _may_be_batch(e)]
    recurs = len(events) - len(batches) >= _OFTEN
    is_rate = event.cause == "rate" or (event.cause == "stale" and has_loss)
    is_local = event.cause in ("tensor", "layer")
    if has_loss and not (event.kind == "spike" and event.is_over):
        first = min([event.first, *(g.onset for g in guilty)])
        text = f"Return to the last checkpoint before step {first:,}."
        yield _advice("return", text, _resume(run, first))
    elif not (is_rate or recurs or left_more) and not (
        is_local and event.kind == "shift"
    ):
        yield _nothing(event, is_adagc)
        return
    if event.cause == "rate":
        step, old, new = event.clues
        yield _advice(
            "rate",
            f"Lower the learning rate: it was {old:.3g} before step {step:,} "
            f"and rose to {new:.3g}.",
        )
    elif event.cause == "period":
        yield _advice(
            "look",
            f"Find out what else recurs every {event.clues[0]} steps: the "
            "order of the data, or a schedule.",
        )
    elif is_rate or (recurs and event not in batches):
        yield _advice(
            "rate",
            "Lower the learning rate: the loss rises over several steps, "
            "which a single batch does not do.",
        )
    elif event in batches:
        spans = [[e.first, e.last] for e in batches[:_MOST_SKIPPED]]
        yield _advice(
            "skip",
            "If the data is to blame, resume from a checkpoint before step "
            f"{spans[0][0]:,}, and leave out these steps by the Trainer's "
            "setting:",
            f'"skip_data_intervals": {spans}',
        )
    if is_local or event.cause == "nonfinite":
        names = ", ".join(g.key for g in guilty[:3])
        yield _advice("look", f"Find out what is special about {names}.")
    if left_more:
        yield _switch(run, event)


def _may_be_batch(event: Happening) -> bool:
    """Whether it began at its height, and was short."""
    is_sudden = event.peak - event.first <= 1 and not event.norm_was_first
    causes = ("all", "several", "labels", "nonfinite", "")
    return event.is_short and is_sudden and event.cause in causes


def _nothing(event: Happening, is_adagc: bool) -> Advice:
    text = "There is nothing to do."
    if math.isfinite(event["left"]):
        text += f" The clip left a norm of {digits(event['left'])}"
        if not is_adagc and math.isfinite(event["shadow_left"]):
            text += f"; AdaGC would have left {digits(event['shadow_left'])}"
        text += "."
    if event.back is not None:
        text += f" The loss was usual from step {event.back:,} on."
    return _advice("nothing", text)


def _switch(run: RecordedRun, event: Happening) -> Advice:
    settings = Settings.of_clip(run.sessions[-1].facts.get("shadow"))
    options = ""
    if settings is not None:
        options = f" --lambda-abs {settings.lambda_abs} --init {settings.init}"
    clip = str(run.sessions[-1].facts.get("clip"))
    first = "Switch to AdaGC."
    if "GlobalNorm" in clip:
        first = "First lower the clip's threshold to a tenth. If spikes "
        first += "remain, set it back and switch to AdaGC."
    return _advice(
        "switch",
        f"{first} Of the norm {event['norm']:.4g} it would have "
        f"left {digits(event['shadow_left'])}, while the clip left "
        f"{digits(event['left'])}. In your own loop call record.switch(); with "
        "a Trainer put this before the command:",
        f"adagc-run{options} --",
    )


def _resume(run: RecordedRun, step: float = math.inf) -> str:
    """Name the newest checkpoint beside the record that has not made a step."""
    found = {}
    for folder in (run.directory.parent, run.directory.parent.parent):
        for path in folder.glob("checkpoint-*"):
            number = path.name.removeprefix("checkpoint-")
            is_number = number.isascii() and number.isdigit()
            if is_number and len(number) < 16 and int(number) < step:
                found[int(number)] = path
    return f"--resume_from_checkpoint {found[max(found)]}" if found else ""


def _advice(code: str, text: str, command: str = "") -> Advice:
    return {"code": code, "text": text, "command": command}
