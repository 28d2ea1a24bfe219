# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What to do about a run: a change only where the loss has suffered."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from paddle_adagc.files import is_finished
from paddle_adagc.watch.events import Happening
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.replay import Settings
from paddle_adagc.watch.tensors import layer_of
from paddle_adagc.watch.text import digits
from paddle_adagc.watch.verdict import MOST, clip_of

_OFTEN = 3  # events of the loss, although each came back
_MOST_SKIPPED = 10
_MUCH = 1.5  # times AdaGC's that a clip left
_DEFAULTS = dataclasses.asdict(Settings())

Advice: TypeAlias = dict[str, str]
"""``code``; ``text``, sentences; ``command``, what to type, or ``""``."""


def advise(
    run: RecordedRun, event: Happening | None, events: Sequence[Happening]
) -> list[Advice]:
    """Say what to do now about the worst of the events."""
    found = [] if event is None else [*_about(run, event, events)]
    if run.end["kind"] in ("exception", "rank", "unknown", "signal"):
        if not any(one["code"] == "return" for one in found):
            has_stopped = run.end["kind"] in ("exception", "signal")
            text = "To go on" if has_stopped else "If the training stopped"
            text += ", resume from the last checkpoint."
            found.insert(0, _advice("return", text, _resume(run)))
    elif run.end["kind"] == "disk":
        text = "Free space on the disk, or record into another folder:"
        found.insert(0, _advice("disk", text, "--record DIR"))
    elif event is not None and not found:
        text, command = "There is nothing to do", ""
        if event.has_loss and event.losses.is_over is None:
            text = "Look at the losses: whether they came back is not known"
        if event.has_loss and event.is_short:
            text += ". A Trainer's setting leaves these steps out of other runs"
            command = _intervals([event])
        ending = ":" if command else "."
        found.append(_advice("nothing", text + ending, command))
    return found


def _about(
    run: RecordedRun, event: Happening, events: Sequence[Happening]
) -> Iterator[Advice]:
    is_over = event.losses.is_over
    is_new = event.has_loss and is_over is None and event is events[-1]
    recurs = event.has_loss and sum(e.has_loss for e in events) >= _OFTEN
    lasts = is_over is False
    suffers = lasts or recurs or is_new
    if lasts or is_new:
        yield _return(run, event)
    if event.rate is not None:
        if suffers or event.rate[3]:
            text = "Lower the learning rate."
            if event.rate[3]:
                text = "Find out why the learning rate rose."
            yield _advice("rate", text)
        return
    if event.begins_with:
        is_harmless = event.is_short or (event.skipped and is_over)
        if suffers or not is_harmless:
            yield from _nonfinite(run, event)
        return
    if suffers and event.has_loss and event.is_short:
        batches = [event]
        text = "If the data is to blame, "
        if lasts or is_new:
            text += "resume from a checkpoint before step "
            text += f"{event.first:,}, and leave out these steps"
        else:
            before = [e for e in events if e.first <= event.first]
            batches = [e for e in before if e.has_loss and e.is_short]
            text += "leave out these steps in the next run"
        yield _advice(
            "skip",
            f"{text} by the Trainer's setting:",
            _intervals(batches[-_MOST_SKIPPED:]),
        )
    finding = event.finding
    is_local = len({layer_of(g.key) for g in finding.guilty}) == 1
    is_local &= finding.share < MOST
    if is_local and (lasts or event.kind == "norm shift"):
        names = ", ".join(g.key for g in finding.guilty[:3])
        yield _advice("look", f"Find out what is special about {names}.")
    left, its = event["left"], event["shadow_left"]
    if event.has_loss and (lasts or recurs) and left > _MUCH * its:
        if "GlobalNorm" in clip_of(run):
            text = "First lower max_grad_norm, the threshold of the clip, to a "
            text += "tenth. If spikes remain, set it back and switch to AdaGC."
            yield _advice("lower", text)
        text = f"Of the highest norm AdaGC would have left {digits(its)}, "
        yield from _switch(run, f"{text}where the clip left {digits(left)}.")


def _intervals(batches: Sequence[Happening]) -> str:
    return f'"skip_data_intervals": {[[e.first, e.last] for e in batches]}'


def _return(run: RecordedRun, event: Happening) -> Advice:
    first = min([event.first, *(g.onset for g in event.finding.guilty)])
    if event.rate is not None:
        first = min(first, event.rate[0])
    text = f"Return to the last checkpoint before step {first:,}."
    if event.losses.is_over is None:
        text = f"If the loss stays high, r{text[1:]}"
    elif event.kind == "norm shift":
        text += " If that does not help, return to an older one: the weights "
        text += "may have been bad before that step."
    return _advice("return", text, _resume(run, first))


def _nonfinite(run: RecordedRun, event: Happening) -> Iterator[Advice]:
    text = f"Look at the batch of step {event.first:,}, and at the "
    text += "loss function." if event.begins_with == "nan" else "backward pass"
    if guilty := event.finding.guilty:
        text += f" of {', '.join(g.key for g in guilty[:3])}."
    skipped, num = event.skipped, len(event.skipped)
    if num > 1 and skipped[-1] - skipped[0] == num - 1:
        text = f"{num} steps were left out, so that as many batches met the "
        text += "same weights: return to an older checkpoint."
    yield _advice("look", text)
    text = "In the next run --skip-above leaves out a step whose loss or norm "
    text += "is NaN or Inf:"
    watch = "" if "ClipGradByAdaGC" in clip_of(run) else "--watch "
    if not event.skipped:
        yield _advice("skip", text, f"adagc-run {watch}--skip-above 8 COMMAND")
    text = "AdaGC sets a gradient with Inf or NaN to 0, and no other."
    yield from _switch(run, text)


def _switch(run: RecordedRun, why: str) -> Iterator[Advice]:
    """Say what to type for AdaGC with the settings of the shadow."""
    if "ClipGradByAdaGC" in clip_of(run):
        return
    options = arguments = ""
    its = Settings.of_clip(run.facts().get("shadow"))
    if its is not None:
        values = dataclasses.asdict(its)
        for name, value in values.items():
            if name in ("lambda_abs", "init") or value != _DEFAULTS[name]:
                options += f" --{name.replace('_', '-')} {value}"
                code = "math.inf" if value == math.inf else repr(value)
                arguments += f", {name}={code}"
    text = f"{why} Give the next run's optimizer ClipGradByAdaGC("
    text += f"{arguments[2:]}), or, with a Trainer, put adagc-run before its "
    text += "command:"
    if run.end["kind"] == "running":
        text = f"{why} A loop that made its Record can call record.switch() "
        text += "now; in the next run of a Trainer put adagc-run before its "
        text += "command:"
    yield _advice("switch", text, f"adagc-run{options} COMMAND")


def _resume(run: RecordedRun, step: float = math.inf) -> str:
    """Name the newest checkpoint beside the record that has not made a step."""
    last = min(step - 1, run.step[-1] if len(run.step) else math.inf)
    found = {}
    for path in run.directory.absolute().parent.glob("checkpoint-*"):
        number = path.name.removeprefix("checkpoint-")
        is_number = number.isascii() and number.isdigit()
        if is_number and len(number) < 16 and int(number) <= last:
            found[int(number)] = path
    finished = {i: path for i, path in found.items() if is_finished(path)}
    found = finished or found
    if not found:
        return ""
    return f"--resume_from_checkpoint {shlex.quote(str(found[max(found)]))}"


def _advice(code: str, text: str, command: str = "") -> Advice:
    return {"code": code, "text": text, "command": command}
