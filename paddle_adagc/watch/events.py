# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What happened in a recorded run, in numbers: looked at to its end.

NumPy alone. :mod:`.verdict` makes sentences of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from paddle_adagc.watch.judge import (
    EVENT_GAP,
    FIRST_JUDGED,
    RULES,
    WINDOW,
    Event,
)
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.tensors import NUM_BEFORE, Finding, find_guilty

FEWEST = WINDOW // 2
"""Losses whose mean tells whether the loss is back."""

_BACK, _HIGHER = 2.0, 3.0
"""Standard errors by which 64 losses may be above those before, and by which
all later ones are, if the loss has not come back."""

_LEAST = 0.01  # of the mean before; less is no harm
_RATE_STEPS = 32  # before an event, in which the learning rate may have risen
_NORMS_STEPS = 64  # of an event, in which its norms are looked at

Known: TypeAlias = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Series -> steps and values where one was recorded, be it NaN."""


class Span(NamedTuple):
    """Finite losses of some steps."""

    first: int
    last: int
    mean: float
    low: float
    high: float
    error: float
    """Standard error of the mean."""

    @classmethod
    def of(cls, steps: np.ndarray, losses: np.ndarray) -> Span:
        """Measure one loss or more."""
        error = losses.std() / len(losses) ** 0.5
        numbers = losses.mean(), losses.min(), losses.max(), error
        return cls(int(steps[0]), int(steps[-1]), *map(float, numbers))

    @property
    def text(self) -> str:
        """The mean and its error, and the steps."""
        mean = f"{self.mean:.4g} ± {self.error:.2g}"
        return f"{mean} in steps {self.first:,} to {self.last:,}"

    def is_above(self, before: Span, errors: float) -> bool:
        """Whether the mean is so many standard errors, and 1%, higher."""
        least = errors * math.hypot(self.error, before.error)
        return self.mean - before.mean > max(least, _LEAST * abs(before.mean))


@dataclasses.dataclass
class Losses:
    """The losses before an event, and after it."""

    last: int = 0
    """The last step whose loss was abnormal, 0: none was."""

    before: Span | None = None
    """The last 64 before, without those of earlier events."""

    after: Sequence[Span] = ()
    """The first 64, and the last 64, between the last abnormal one (or the
    event's first step) and the next event of the loss; the second may be
    missing."""

    back: int | None = None
    """Where the first 64 begin whose mean is not above that before."""

    is_over: bool | None = None
    """Whether there are such losses; None: not known yet."""


@dataclasses.dataclass
class Happening:
    """An event of the loss, the gradients' norm, or a tensor."""

    first: int
    """The event's step: the first abnormal one."""

    last: int
    """The last abnormal step before ten calm ones."""

    series: dict[str, int]
    """What was abnormal, and its first abnormal step: ``"loss"``, ``"nan"``
    (the loss was not finite), ``"nonfinite"`` (a gradient was not),
    ``"global_grad_norm"``; or ``"step"``, one that was asked for."""

    peak: int = 0
    """Step of the highest loss, or else of the highest norm."""

    losses: Losses = dataclasses.field(default_factory=Losses)

    skipped: list[int] = dataclasses.field(default_factory=list)
    """Steps that ``skip_above`` left out."""

    finding: Finding = dataclasses.field(default_factory=Finding)
    is_thinned: bool = False
    """Whether the record lacks the tensors' norms of some of these steps."""

    rate: tuple[int, float, float, int, float] | None = None
    """See :func:`rate_change`."""

    numbers: dict[str, float] = dataclasses.field(default_factory=dict)
    """``loss``, the highest one; ``excess``: loss over the mean before, summed
    over the event; ``norm``, the highest global norm, ``left`` and
    ``shadow_left`` of it by clip and shadow; ``usual_norm``, the median of 64
    before."""

    def __getitem__(self, name: str) -> float:
        """Return one of the numbers; NaN: unknown."""
        return self.numbers.get(name, math.nan)

    @property
    def kind(self) -> str:
        """What was abnormal, and whether it lasts, as far as is known."""
        if "nan" in self.series:
            return "loss nan"
        if "loss" in self.series:
            return (
                "loss shift" if self.losses.is_over is False else "loss spike"
            )
        if "nonfinite" in self.series:
            return "gradient nan"
        if "step" in self.series:
            return "step"
        lasts = self.last - self.first >= FEWEST
        return "norm shift" if lasts else "norm spike"

    @property
    def has_loss(self) -> bool:
        """Whether the loss was abnormal."""
        return not self.series.keys().isdisjoint(("loss", "nan"))

    @property
    def is_short(self) -> bool:
        """Whether bad batches may have done it: at most four steps."""
        return self.last - self.first < 4

    @property
    def begins_with(self) -> str:
        """``"nan"`` or ``"nonfinite"`` if its first step had it, else empty."""
        names = ("nan", "nonfinite")
        found = [n for n in names if self.series.get(n) == self.first]
        return found[0] if found else ""


def find_events(run: RecordedRun) -> list[Happening]:
    """Return what happened, by its steps.

    The record's thread has judged each step; here the run's end is known.
    """
    begun = [*_alarms(run)]
    known = {name: _recorded(run, name) for name in (*RULES, "nonfinite")}
    events = [_happening(known, group) for group in _groups(known, begun)]
    is_calm = _calm_steps(run, events)
    for number, event in enumerate(events, 1):
        later = (other for other in events[number:] if other.has_loss)
        until = next((other.first for other in later), math.inf)
        _look_at_loss(run, event, is_calm, until)
        _look_at_norms(run, event, is_calm)
        is_calm &= _calm_steps(run, [event])
        event.rate = rate_change(run, event)
    return events


def at_step(
    run: RecordedRun, step: int, events: Sequence[Happening]
) -> Happening:
    """Look at a step as if an event had begun there."""
    found = Happening(step, step, {"step": step})
    is_calm = _calm_steps(run, events)
    _look_at_loss(run, found, is_calm, step + 1)
    _look_at_norms(run, found, is_calm)
    found.rate = rate_change(run, found)
    return found


def _alarms(run: RecordedRun) -> Iterator[Event]:
    """Take alarms of which the record has the numbers."""
    rows = {row["step"]: row for row in run.rows}
    for alarm in run.alarms:
        numbers: list[Any] = [alarm.get(x) for x in ("value", "usual", "bound")]
        value = rows.get(alarm["step"], {}).get(alarm["series"])
        has_begun = alarm["kind"] in ("spike", "nan")
        if has_begun and all(map(is_number, [value, *numbers])):
            kind, series, step = (alarm[x] for x in ("kind", "series", "step"))
            yield Event(kind, series, step, *numbers)


def is_number(value: Any) -> bool:
    """Whether a value of a row counts: NaN does, a text does not."""
    return type(value) in (int, float)


def _recorded(run: RecordedRun, name: str) -> tuple[np.ndarray, np.ndarray]:
    known = [is_number(row.get(name)) for row in run.rows]
    return run.step[known], run.column(name)[known]


def _groups(known: Known, events: Sequence[Event]) -> list[list[Event]]:
    """Join events of several series that lie close to each other."""
    groups: list[list[Event]] = []
    end = -math.inf
    for event in events:
        if event.step - end > EVENT_GAP:
            groups.append([])
            end = 0
        groups[-1].append(event)
        end = max(end, _last(known, event))
    return groups


def _last(known: Known, event: Event) -> int:
    """Return the last abnormal step before ten calm ones."""
    if event.series not in known:
        return event.step
    steps, values = known[event.series]
    is_high = ~np.isfinite(values)
    if event.kind != "nan":
        is_high |= values > event.bound
    highs = np.flatnonzero(is_high & (steps >= event.step))
    if event.kind == "spike" and event.series in RULES:  # then it is usual
        highs = highs[highs < np.searchsorted(steps, event.step) + WINDOW]
    if not len(highs):
        return event.step
    gaps = np.flatnonzero(np.diff(highs) > EVENT_GAP)
    return int(steps[highs[gaps[0] if len(gaps) else -1]])


def _happening(known: Known, events: Sequence[Event]) -> Happening:
    series: dict[str, int] = {}
    for event in events:
        name = "nan" if event.kind == "nan" else event.series
        series.setdefault(name, event.step)
    lasts = [(_last(known, event), event.series == "loss") for event in events]
    of_loss = [last for last, is_loss in lasts if is_loss]
    return Happening(
        first=min(series.values()),
        last=max(last for last, _ in lasts),
        series=series,
        losses=Losses(last=max(of_loss, default=0)),
    )


def slow_rise(run: RecordedRun) -> tuple[Span, Span] | None:
    """Return the lowest block of 64 losses and the last one, if it is higher.

    What rises slowly becomes usual, and no event begins.
    """
    loss = run.column("loss")
    known = np.flatnonzero(np.isfinite(loss))
    places = range(len(known) % WINDOW, len(known), WINDOW)
    blocks = [known[i : i + WINDOW] for i in places]
    spans = [Span.of(run.step[rows], loss[rows]) for rows in blocks]
    lowest = min(spans, key=lambda span: span.mean, default=None)
    if lowest is None or not spans[-1].is_above(lowest, _HIGHER):
        return None
    return lowest, spans[-1]


def _calm_steps(run: RecordedRun, events: Sequence[Happening]) -> np.ndarray:
    """Mark the steps that say what is usual: those of no event that is open."""
    is_calm = np.ones(len(run.step), bool)
    for event in events:
        end = event.losses.back or event.last + 1
        is_calm &= (run.step < event.first) | (run.step >= end)
    return is_calm


def _look_at_loss(
    run: RecordedRun, found: Happening, is_calm: np.ndarray, until: float
) -> None:
    """Measure the loss before an event, in it, and up to the next one."""
    loss, step = run.column("loss"), run.step
    losses, first = found.losses, found.first
    is_known = np.isfinite(loss)
    past = np.flatnonzero(is_known & is_calm & (step < first))[-WINDOW:]
    inside = (step >= first) & (step <= max(losses.last, first))
    begin = max(first, losses.last + 1)
    rest = np.flatnonzero(is_known & (step >= begin) & (step < until))
    if (inside & is_known).any():
        worst = int(np.argmax(np.where(inside & is_known, loss, -math.inf)))
        found.numbers["loss"] = float(loss[worst])
        if losses.last:
            found.peak = int(step[worst])
    if until == math.inf and not len(rest):
        is_long = np.count_nonzero(inside) >= FEWEST
        losses.is_over = False if is_long or "nan" in found.series else None
    is_last = until == math.inf and not is_known[step > found.last].any()
    if is_last and "nonfinite" in found.series and _ends_with_nan(run):
        losses.is_over = False
    if not len(past):
        return
    losses.before = before = Span.of(step[past], loss[past])
    found.numbers["excess"] = float((loss[inside] - before.mean).sum())
    parts = [rest[i : i + WINDOW] for i in range(0, len(rest), WINDOW)]
    spans = [Span.of(step[p], loss[p]) for p in parts if len(p) >= FEWEST]
    if spans:
        latest = rest[-WINDOW:]
        losses.after = [spans[0], Span.of(step[latest], loss[latest])]
        losses.after = losses.after[: len(spans)]
        is_back = [not span.is_above(before, _BACK) for span in spans]
        if any(is_back):
            losses.is_over = True
            losses.back = spans[is_back.index(True)].first
        elif Span.of(step[rest], loss[rest]).is_above(before, _HIGHER):
            losses.is_over = False


def _ends_with_nan(run: RecordedRun) -> bool:
    """Whether the last loss was not finite, maybe of a step never made."""
    loss = run.end.get("last_loss")
    return isinstance(loss, float) and not math.isfinite(loss)


def _look_at_norms(
    run: RecordedRun, found: Happening, is_calm: np.ndarray
) -> None:
    """Measure the norms before an event and in it; 64 steps of tensors."""
    inside = (run.step >= found.first) & (run.step <= found.last)
    is_skipped = run.column("skipped") == 1
    found.skipped = run.step[inside & is_skipped].tolist()
    norm = run.column("global_grad_norm")
    is_known = np.isfinite(norm) & ~(run.column("nonfinite") > 0)
    past = np.flatnonzero(is_known & is_calm & (run.step < found.first))
    if len(past := past[-WINDOW:]):
        found.numbers["usual_norm"] = float(np.median(norm[past]))
    if (inside & is_known).any():
        at = int(np.argmax(np.where(inside & is_known, norm, -math.inf)))
        found.peak = found.peak or int(run.step[at])
        found.numbers["norm"] = float(norm[at])
        for name in () if is_skipped[at] else ("left", "shadow_left"):
            column = name.replace("left", "clipped_grad_norm")
            found.numbers[name] = float(run.column(column)[at])
    found.peak = found.peak or found.first
    if found.begins_with == "nan":
        return  # which leaves no gradient finite
    last = min(found.last, found.first + _NORMS_STEPS - 1)
    if found.begins_with:
        last = found.first  # a step later all may have it
    steps = run.tensor_steps
    found.is_thinned = not np.isin(
        run.step[(run.step >= found.first - 64) & (run.step <= last)], steps
    ).all()
    is_past = is_calm[np.searchsorted(run.step, steps)] & (steps < found.first)
    now = np.flatnonzero((steps >= found.first) & (steps <= last))
    rows = np.append(np.flatnonzero(is_past)[-NUM_BEFORE:], now)
    norms = run.tensors("norm", rows)
    finding = find_guilty(steps[rows], norms, run.keys, found.first, last)
    if found.begins_with:
        guilty = [g for g in finding.guilty if math.isinf(g.norm)]
        finding = dataclasses.replace(finding, guilty=guilty)
    found.finding = finding


def rate_change(
    run: RecordedRun, event: Happening
) -> tuple[int, float, float, int, float] | None:
    """Return a jump of the learning rate just before an event, if there is one.

    Returns:
        Step, the rate before it, the highest one up to the event's last step;
        then the step from which on it was no higher than before, and the rate
        there, or 0, 0.
    """
    step, rate = run.step, run.column("learning_rate")
    place = int(np.searchsorted(step, event.first))
    for at in range(max(FIRST_JUDGED, place - _RATE_STEPS), place + 1):
        before = float(rate[at - 1])
        if not rate[at] > 1.3 * before > 0:
            continue
        highest = float(rate[at:][step[at:] <= event.last].max())
        back = at + int(np.flatnonzero(rate[at:] > 1.1 * before)[-1]) + 1
        known = 0, 0.0
        if back < len(rate) and rate[back] > 0:
            known = int(step[back]), float(rate[back])
        return int(step[at]), before, highest, *known
    return None
