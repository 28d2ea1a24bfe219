# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What happened, and what to do: what is known, and nothing else."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from paddle_adagc.watch.events import MOST, Happening
from paddle_adagc.watch.judge import FIRST_JUDGED
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.replay import Settings
from paddle_adagc.watch.text import digits

_SOME = 0.3  # of the tensors
_CAUSES = {
    "rate": "From step {:,} on the learning rate rose, from {:.3g} to {:.3g}.",
    "period": "Such an event recurs every {} steps.",
    "stale": "The norm had been low for long, so the second moments had "
    "forgotten such gradients.",
    "lasting": "This lasts, so it is not a single batch.",
    "all": "{batch} can do that, and so can the optimizer.",
    "tensor": "No other tensor did.",
    "layer": "No tensor outside of {} did.",
    "several": "{} tensors did so, but most did not.",
    "labels": "Wrong labels raise the loss alone, but so do other things.",
}


def verdict_of(
    run: RecordedRun, event: Happening | None, events: Sequence[Happening]
) -> dict[str, Any]:
    """Say what happened; ``event`` is the worst of the events.

    Returns:
        ``kind``: that of the event, ``"calm"``, ``"short"``, or ``"stopped"``
        where nothing but the end of the run is to tell; ``lines``: what
        happened, what it did to the loss, who began it, why, and how the run
        ended, as far as it is known; ``text``: all of them.
    """
    is_well = run.end["kind"] in ("finished", "running")
    if event is not None:
        kind = event.kind
        what = " ".join([*_what(run, event), *_norms(event)])
        did = " ".join(_did(run, event, events))
        batch = "A batch" if event.is_short else "The data"
        why = _CAUSES.get(event.cause, "").format(*event.clues, batch=batch)
        lines = [what, did, " ".join([*_who(event), why]).strip()]
    else:
        kind = "short" if len(run.step) <= FIRST_JUDGED else "calm"
        kind = kind if is_well else "stopped"
        lines = [_calm(run)]
    lines.insert(len(lines) if is_well else 0, _end(run.end))
    lines = [line for line in lines if line]
    return {"kind": kind, "lines": lines, "text": " ".join(lines)}


def _end(end: dict[str, Any]) -> str:
    """Say how a session ended: see :attr:`.Session.end`."""
    step, text = end.get("step"), str(end.get("text") or "")
    at = f" after step {step:,}" if type(step) is int else ""
    since = end.get("seconds_since")
    ago = f", {_time(since)} ago" if isinstance(since, (int, float)) else ""
    said = {
        "finished": f"The run finished{at}" + f": {text}" * bool(text),
        "running": f"The run goes on{at}",
        "exception": f"The run stopped{at} with {text or 'an exception'}",
        "signal": f"{text or 'A signal'} ended the run{at}",
        "disk": f"The record ends{at}, because it could not be written: "
        f"{text or 'the disk refused it'}. The training may have gone on",
        "rank": f"The record ends{at}: {text or 'a rank was lost'}",
        "replaced": f"The record ends{at}: a newer run writes it now",
        "unknown": f"The record ends{at}{ago}, and does not say why",
    }[end["kind"]]
    loss, dropped = end.get("last_loss"), end.get("dropped")
    if isinstance(loss, (int, float)) and not math.isfinite(loss):
        said += ". The last loss was NaN or Inf"
    if type(dropped) is int and dropped > 0:
        said += f". {dropped:,} steps are missing: the disk was too slow"
    return f"{said}."


def _time(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(min(max(seconds, 0), 1e9))))


def _calm(run: RecordedRun) -> str:
    num = len(run.step)
    names = {"loss": "the loss", "global_grad_norm": "the global norm"}
    known = [
        name
        for column, name in names.items()
        if np.isfinite(run.column(column)).any()
    ]
    if num <= FIRST_JUDGED:
        return f"{num} steps are too few to judge: it takes {FIRST_JUDGED + 1}."
    if not known:
        return f"The {num:,} steps have neither a loss nor a norm to judge."
    return f"In {num:,} steps {' and '.join(known)} did not rise unusually."


def _what(run: RecordedRun, event: Happening) -> Iterator[str]:
    seconds = np.nansum(run.column("step_seconds")[run.step < event.first])
    into = f" ({_time(seconds)} into the run)" if seconds >= 1 else ""
    text = f"At step {event.first:,}{into} "
    later = f" at step {event.peak:,}" * (event.peak > event.first)
    loss, usual = event["loss"], ""
    if math.isfinite(event["usual_loss"]):
        usual = f" (usually {event['usual_loss']:.4g})"
    if "loss" in event.series and not math.isfinite(loss):
        began = "an event began; " * bool(later)
        yield f"{text}{began}the loss was NaN or Inf{later}{usual}."
    elif "loss" in event.series:
        comma = "," * bool(later)
        yield f"{text}the loss rose{comma} to {loss:.4g}{later}{usual}."
    elif "nonfinite" in event.series:
        yield f"{text}a gradient was not finite."
    elif "global_grad_norm" in event.series:
        yield f"{text}the global norm rose."
    elif math.isfinite(loss):
        yield f"{text}the loss was {loss:.4g}{usual}."
    if not {"loss", "step"} & {*event.series} and math.isfinite(loss):
        yield f"The loss there was {loss:.4g}{usual}."
    is_first = event.series.get("global_grad_norm") == event.first
    if is_first and event.norm_was_first:
        yield "The norm rose first, the loss later."


def _norms(event: Happening) -> Iterator[str]:
    if not math.isfinite(event["norm"]):
        return
    verb = "was" if event.kind == "step" else "reached"
    text = f"The global norm {verb} {event['norm']:.4g}"
    if math.isfinite(event["usual_norm"]):
        text += f" (usually {event['usual_norm']:.4g})"
    if event.skipped:
        text += f"; steps that were skipped: {len(event.skipped)}"
    elif math.isfinite(event["left"]):
        text += f"; the clip left {digits(event['left'])}"
        if math.isfinite(event["shadow_left"]):
            text += (
                f", and AdaGC would have left {digits(event['shadow_left'])}"
            )
    yield f"{text}."


def _did(
    run: RecordedRun, event: Happening, events: Sequence[Happening]
) -> Iterator[str]:
    """Say what became of the loss, until the record ends."""
    if "loss" not in event.series:
        return
    num = np.count_nonzero((run.step >= event.first) & (run.step <= event.last))
    if math.isfinite(event["excess"]) and num > 1:
        noise = f" ± {event['noise']:.2g}" * math.isfinite(event["noise"])
        yield (
            f"Summed over {num} steps, the loss was {digits(event['excess'])}"
            f"{noise} above usual."
        )
    above = f"{digits(event['after'])} above usual"
    end = f"the record ends at step {run.step[-1]:,}"
    if event.kind == "end":
        yield f"The last such loss is at step {event.last:,}; {end}."
    elif event.kind == "shift" and math.isfinite(event["after"]):
        yield f"The later losses have a median {above}; {end}."
    elif event.kind == "shift":
        yield f"The loss has not come back; {end}."
    elif event.back is None:
        yield "The record ends too early to tell if the loss came back."
    elif not event.is_over:
        yield (
            f"The loss fell again at step {event.back:,}, but its median from "
            f"there on is {above}; {end}."
        )
    else:
        back, until = event.back, end
        if later := [e.first for e in events if e.first > back]:
            until = f"the next event is at step {min(later):,}"
        yield f"The loss was usual again from step {back:,} on; {until}."


def _who(event: Happening) -> Iterator[str]:
    guilty, share = event.finding.guilty, event.finding.share
    rose = f"{share:.0%} of the tensors rose at once."
    if not event.finding.is_known:
        return
    if not guilty:
        if share < _SOME and not event["norm"] > 2 * event["usual_norm"]:
            yield "Every tensor kept its usual norm."
        else:
            yield f"No single tensor stands out. {rose}"
        return
    bad = sorted(
        (g for g in guilty if math.isinf(g.norm)), key=lambda g: g.worst_step
    )
    if bad:
        more = f", and so had {len(bad) - 1} more tensors in this event"
        yield (
            f"The gradient of {bad[0].key} had Inf or NaN in it at step "
            f"{bad[0].worst_step:,}{more * (len(bad) > 1)}."
        )
    first = guilty[0]
    num_first = sum(g.onset == first.onset for g in guilty)
    if first not in bad and num_first > 1:
        yield (
            f"At step {first.onset:,}, {num_first} tensors were the first to "
            f"leave their usual norms; {first.key} went farthest, to "
            f"{digits(first.ratio)} times."
        )
    elif first not in bad:
        yield (
            f"{first.key} was the first tensor to leave its usual norm, at "
            f"step {first.onset:,}; it reached {digits(first.ratio)} times "
            "that norm."
        )
    if first not in bad and share >= MOST:
        yield rose


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
        yield _advice("nothing", "There is nothing to do.")
        return
    if event.cause == "rate":
        yield _advice("rate", "Lower the learning rate.")
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
        yield _switch(run)


def _may_be_batch(event: Happening) -> bool:
    """Whether it began at its height, and was short."""
    is_sudden = event.peak - event.first <= 1 and not event.norm_was_first
    causes = ("all", "several", "labels", "nonfinite", "")
    return event.is_short and is_sudden and event.cause in causes


def _switch(run: RecordedRun) -> Advice:
    settings = Settings.of_clip(run.sessions[-1].facts.get("shadow"))
    options = ""
    if settings is not None:
        options = f" --lambda-abs {settings.lambda_abs} --init {settings.init}"
    text = "Switch to AdaGC, which would have left less."
    if "GlobalNorm" in str(run.sessions[-1].facts.get("clip")):
        text = "First try a tenth of the clip's threshold. If spikes remain, "
        text += "switch to AdaGC, which would have left less."
    text += " In your own loop call record.switch(); with a Trainer put this "
    text += "before the command:"
    return _advice("switch", text, f"adagc-run{options} --")


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
