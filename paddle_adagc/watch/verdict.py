# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A verdict in sentences: what is known, and nothing else."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from paddle_adagc.watch.events import Happening, Span, is_number, slow_rise
from paddle_adagc.watch.judge import FIRST_JUDGED
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.text import counted, digits

_SOME = 0.3  # of the tensors
MOST = 0.5
"""Share of the tensors that is most of them."""


def verdict_of(run: RecordedRun, event: Happening | None) -> dict[str, Any]:
    """Say what happened.

    Args:
        run: The record.
        event: The worst event.

    Returns:
        ``kind``: that of the event, ``"calm"``, ``"slow rise"``, ``"short"``,
        or ``"stopped"`` where nothing but the end is to tell; ``lines``: what
        happened, what the loss was before and after, who began it, how the
        learning rate rose, and how the run ended, as far as it is known;
        ``text``: all of them.
    """
    is_well = run.end["kind"] in ("finished", "running")
    if event is not None:
        kind = event.kind
        what = " ".join([*_what(run, event), *_norms(event)])
        did = " ".join(_losses(run, event))
        who = _nonfinite(run, event) if event.begins_with else _who(event)
        lines = [what, did, " ".join([*who, *_rate(event)])]
    else:
        kind = "short" if len(run.step) <= FIRST_JUDGED else "calm"
        rise = slow_rise(run)
        kind = "slow rise" if rise else kind
        kind = kind if is_well else "stopped"
        lines = [_calm(run, rise)]
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
        "finished": f"The run ended{at}" + f": {text}" * bool(text),
        "running": "The process is alive; it has no step yet"
        if not at
        else f"The process is alive; its last recorded step is {step:,}",
        "exception": f"The run stopped{at} with {text or 'an exception'}",
        "signal": f"{text or 'A signal'} ended the run{at}",
        "disk": f"The record ends{at}, because it could not be written: "
        f"{text or 'the disk refused it'}. The training may have gone on",
        "rank": f"The record ends{at}: {text or 'a rank was lost'}",
        "replaced": f"The record ends{at}: a newer run writes it now",
        "unknown": f"The record ends{at}{ago}"
        + (f": {text}" if text else ", and does not say why"),
    }[end["kind"]]
    loss, dropped = end.get("last_loss"), end.get("dropped")
    if isinstance(loss, (int, float)) and not math.isfinite(loss):
        said += ". The last loss was NaN or Inf"
    if type(dropped) is int and dropped > 0:
        said += f". Missing, as the disk was too slow: {counted(dropped)}"
    return f"{said}."


def _time(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(min(max(seconds, 0), 1e9))))


def _calm(run: RecordedRun, rise: tuple[Span, Span] | None) -> str:
    num = len(run.step)
    names = {"loss": "the loss", "global_grad_norm": "the global norm"}
    counts = {x: np.isfinite(run.column(x)).sum() for x in names}
    known = [names[x] for x in names if counts[x] > FIRST_JUDGED]
    if num <= FIRST_JUDGED:
        return f"{counted(num)}: it takes {FIRST_JUDGED + 1} to judge."
    if not known:
        return f"The {num:,} steps have too few losses and norms to judge."
    text = f"In {num:,} steps {' and '.join(known)} did not rise suddenly."
    if rise is not None:
        text += " But the loss was "
        text += f"{' and '.join(span.text for span in rise)}."
    return text


# ---- what happened, and what the loss was -----------------------------------


def _what(run: RecordedRun, event: Happening) -> Iterator[str]:
    """Say what was abnormal, each from its own step on."""
    for step in sorted({*event.series.values()}):
        began = [name for name, first in event.series.items() if first == step]
        row = int(np.searchsorted(run.step, step))
        loss = float(run.column("loss")[row])
        found = []
        if "nan" in began:
            found.append("the loss was NaN or Inf")
        elif "loss" in began:
            found.append(f"the loss rose to {loss:.4g}")
            if event["loss"] > loss:
                highest = f"{event['loss']:.4g} at step {event.peak:,}"
                found[-1] += f" (highest: {highest})"
        elif math.isfinite(loss):
            found.append(f"the loss was {loss:.4g}")
        if "global_grad_norm" in began:
            found.append("the global norm rose")
        if "nonfinite" in began:
            found.append(_gradients(run, row))
        if found:
            yield f"At step {step:,} {' and '.join(found)}."


def _gradients(run: RecordedRun, row: int) -> str:
    number, num = run.column("nonfinite")[row], len(run.keys)
    return f"{number:.0f} of {counted(num, 'gradient')} had Inf or NaN"


def _norms(event: Happening) -> Iterator[str]:
    if not math.isfinite(event["norm"]):
        return
    verb = "was" if event.kind == "step" else "was at most"
    text = f"The global norm {verb} {event['norm']:.4g}"
    if math.isfinite(event["usual_norm"]):
        text += f" (before: {event['usual_norm']:.4g})"
    if event.skipped:
        text += f"; skip_above left out {counted(len(event.skipped))}"
    elif math.isfinite(event["left"]):
        text += f"; the clip left a norm of {digits(event['left'])}"
        if math.isfinite(its := event["shadow_left"]):
            text += f", and AdaGC would have left {digits(its)}"
    yield f"{text}."


def _losses(run: RecordedRun, event: Happening) -> Iterator[str]:
    """Say what the loss was before and after."""
    losses = event.losses
    before, after, back = losses.before, losses.after, losses.back
    if before is not None:
        yield (
            f"Before, in steps {before.first:,} to {before.last:,}, the loss "
            f"was {before.mean:.4g} ± {before.error:.2g} on average "
            f"({before.low:.4g} to {before.high:.4g})."
        )
    if after:
        yield f"Then it was {' and '.join(span.text for span in after)}."
    if "nan" in event.series:
        rows = run.rows[np.searchsorted(run.step, event.series["nan"]) :]
        found = [row["loss"] for row in rows if is_number(row.get("loss"))]
        num = sum(not math.isfinite(loss) for loss in found)
        yield (
            f"NaN or Inf are {num:,} of the {len(found):,} losses from step "
            f"{event.series['nan']:,} on."
        )
    elif event.has_loss and not after:
        yield (
            f"The last abnormal loss is at step {losses.last:,}; the "
            f"record ends at step {run.step[-1]:,}."
        )
    if after and losses.is_over is False:
        yield (
            "No 64 of these losses, block by block, had a mean as low as that "
            "before, give or take 1% or 2 standard errors."
        )
    elif back is not None and back > after[0].first:
        yield (
            "Block by block, the first 64 losses with a mean at most 1%, or 2 "
            f"standard errors, above that before began at step {back:,}."
        )


# ---- who began it ----------------------------------------------------------


def _nonfinite(run: RecordedRun, event: Happening) -> Iterator[str]:
    """Say what is known of the first step with Inf or NaN, and beside it."""
    row = int(np.searchsorted(run.step, event.first))
    number = run.column("nonfinite")
    counts = [
        f"{number[i]:.0f} at step {run.step[i]:,}"
        for i in (row - 1, row, row + 1)
        if 0 <= i < len(number) and number[i] >= 0
    ]
    if counts:
        text = f"Gradients with Inf or NaN, of {len(run.keys):,}: "
        yield f"{text}{', '.join(counts)}."
    if guilty := event.finding.guilty:
        names = ", ".join(g.key for g in guilty[:3])
        names += f" and {len(guilty) - 3:,} more" * (len(guilty) > 3)
        yield f"At step {event.first:,} Inf or NaN was in {names}."
    if event.first in event.skipped:
        yield "The step was left out."
    elif run.column("overflow")[row] == 1:
        yield "The GradScaler left the step out."


def clip_of(run: RecordedRun) -> str:
    """Describe the clip that acted at the end."""
    return str(run.facts().get("clip"))


def _who(event: Happening) -> Iterator[str]:
    """Say which tensors left their usual norms."""
    guilty, share = event.finding.guilty, event.finding.share
    if not event.finding.is_known:
        return
    rose = f"{share:.0%} of the tensors rose at once"
    if guilty:
        first, num = guilty[0], len(guilty)
        at, far = f"at step {first.onset:,}", "to Inf or NaN"
        if math.isfinite(first.norm):
            far = f"to {digits(first.ratio)} times its usual norm"
        if first.worst_step != first.onset:
            far += f" at step {first.worst_step:,}"
        if share >= MOST:
            yield f"{rose}, {at}; {first.key} {far}."
        elif num == 1:
            yield f"Only {first.key} left its usual norm, {at}: {far}."
        else:
            text = f"{num} tensors left their usual norms, {first.key} first, "
            yield f"{text}{at}: {far}."
    elif share < _SOME and not event["norm"] > 2 * event["usual_norm"]:
        yield "Every tensor kept its usual norm."
    elif share:
        yield f"No single tensor stands out; {rose}."
    if event.is_thinned:
        yield "The record lacks the tensors' norms of some of these steps."


def _rate(event: Happening) -> Iterator[str]:
    """Say how the learning rate rose just before, if it did."""
    if event.rate is not None:
        step, old, new, back, now = event.rate
        text = f"The learning rate was {old:.3g} before step {step:,}, then up "
        text += f"to {new:.3g}"
        yield text + (
            f", and {now:.3g} from step {back:,} on." if back else "."
        )
