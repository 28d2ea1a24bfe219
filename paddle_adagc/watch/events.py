# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What happened in a recorded run, in numbers: looked at to its end.

NumPy alone. :mod:`.verdict` makes sentences of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from paddle_adagc.watch.judge import EVENT_GAP, FIRST_JUDGED, RULES, Event
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.tensors import (
    NUM_BEFORE,
    Finding,
    find_guilty,
    layer_of,
)

_FEWEST_BACK = 3  # steps that prove a loss to be usual again
_HIGHER = 5.0  # standard errors by which a loss stays higher
_OF_LINE = 0.1  # variance of the end of a line through 64 values, over theirs
_RATE_STEPS = 32
MOST = 0.5
"""Share of the tensors that is most of them."""

_SHORT = 4  # steps that a single batch may take at most
_NORMS_STEPS = 64  # of an event, in which its norms are looked at

Known: TypeAlias = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Series -> steps and values where one was recorded, be it NaN."""


@dataclasses.dataclass
class Happening:
    """An event of the loss, the gradients' norm, or a tensor."""

    kind: str
    """``"spike"``: it comes back, or is too young to know; ``"shift"``: it
    does not; ``"end"``: the loss is not finite to the end; ``"step"``: it is
    a step that was asked for."""

    first: int
    """The event's step: the first abnormal one."""

    last: int
    """The last one before it was usual again, or the run's last."""

    series: dict[str, int]
    """What was abnormal, and its first abnormal step."""

    peak: int = 0
    """Step of the highest loss, or else of the highest norm."""

    back: int | None = None
    """First step of the usual loss again; None: not, or not known."""

    is_over: bool | None = None
    """Whether it came back; None: not known, or only in part."""

    skipped: list[int] = dataclasses.field(default_factory=list)
    """Steps that ``skip_above`` left out."""

    finding: Finding = dataclasses.field(default_factory=Finding)
    cause: str = ""
    clues: tuple[Any, ...] = ()
    """See :func:`_cause`."""

    numbers: dict[str, float] = dataclasses.field(default_factory=dict)
    """``loss``, the highest, NaN if not finite; ``usual_loss``; ``excess``:
    loss over usual, summed over the event, and ``noise``, the standard
    deviation of such a sum where nothing happens; ``after``: median loss from
    ``back`` to the run's end, over usual; ``norm``: the highest global norm;
    ``usual_norm``; ``left`` and ``shadow_left`` of it by clip and shadow."""

    def __getitem__(self, name: str) -> float:
        """Return one of the numbers; NaN: unknown."""
        return self.numbers.get(name, math.nan)

    @property
    def is_short(self) -> bool:
        """Whether a single batch may have done it."""
        return self.last - self.first < _SHORT

    @property
    def norm_was_first(self) -> bool:
        """Whether a norm was abnormal before the loss was."""
        return self.first < self.series.get("loss", self.first)


def find_events(run: RecordedRun) -> tuple[list[Happening], list[Event]]:
    """Return what happened, by its steps, and the states that last.

    The record's thread has judged each step; here the run's end is known.
    """
    found = [*_alarms(run)]
    states = [event for event in found if event.kind == "state"]
    spikes = [event for event in found if event.kind in ("spike", "end")]
    known = {name: _recorded(run, name) for name in RULES}
    events = [_happening(run, known, group) for group in _groups(known, spikes)]
    firsts = [event.first for event in events]
    for event in events:
        event.cause, event.clues = _cause(run, event, firsts)
    return events, states


def _alarms(run: RecordedRun) -> Iterator[Event]:
    """Take alarms of which the record has the numbers."""
    rows = {row["step"]: row for row in run.rows}
    for alarm in run.alarms:
        numbers: list[Any] = [
            alarm.get(name) for name in ("value", "usual", "bound")
        ]
        value = rows.get(alarm["step"], {}).get(alarm["series"])
        is_known = alarm["kind"] == "state" or is_number(value)
        if is_known and all(map(is_number, numbers)):
            kind, series, step = (alarm[x] for x in ("kind", "series", "step"))
            yield Event(kind, series, step, *numbers)


def at_step(run: RecordedRun, step: int) -> Happening:
    """Look at a step as if an event had begun there."""
    event = _happening(run, {}, [Event("spike", "step", step, math.nan)])
    event.kind = "step"
    event.cause, event.clues = _cause(run, event, [])
    return event


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
    if event.kind != "end":
        is_high |= values > event.bound
    highs = np.flatnonzero(is_high & (steps >= event.step))
    if not len(highs):
        return event.step
    gaps = np.flatnonzero(np.diff(highs) > EVENT_GAP)
    return int(steps[highs[gaps[0] if len(gaps) else -1]])


def _happening(
    run: RecordedRun, known: Known, events: Sequence[Event]
) -> Happening:
    first = min(event.step for event in events)
    last = max(_last(known, event) for event in events)
    series: dict[str, int] = {}
    for event in events:
        series.setdefault(event.series, event.step)
    found = Happening("spike", first, last, series)
    of_loss = [event for event in events if event.series == "loss"]
    if of_loss:
        _follow_loss(*known["loss"], found, of_loss[0])
    else:
        num_later = np.count_nonzero(run.step > last)
        if num_later >= _FEWEST_BACK:
            found.is_over = True
        elif last - first >= FIRST_JUDGED:
            found.kind, found.is_over = "shift", False
        loss = run.column("loss")[np.searchsorted(run.step, first)]
        found.numbers = {
            "loss": float(loss),
            "usual_loss": _before(run, "loss", first),
        }
    _look_at_norms(run, found)
    return found


def _follow_loss(
    steps: np.ndarray, loss: np.ndarray, found: Happening, event: Event
) -> None:
    """Measure what the loss did from the event on to the end of the run."""
    place = int(np.searchsorted(steps, event.step))
    until = int(np.searchsorted(steps, found.last, "right"))
    past, inside, rest = loss[:place][-64:], loss[place:until], loss[until:]
    past, rest = past[np.isfinite(past)], rest[np.isfinite(rest)]
    usual = event.usual
    if not math.isfinite(usual) and len(past):
        usual = float(np.median(past[-32:]))
    is_finite = np.isfinite(inside)
    worst = int(np.argmax(np.where(is_finite, inside, np.inf)))
    found.peak = int(steps[place + worst])
    mine = found.numbers = {"loss": float(inside[worst]), "usual_loss": usual}
    deviation = math.nan
    if len(past) > 2:  # of neighbours: without the descent
        deviation = 1.4826 * float(np.median(np.abs(np.diff(past)))) / 2**0.5
    if is_finite.all():
        mine["excess"] = float((inside - usual).sum())
        mine["noise"] = deviation * math.sqrt(len(inside))
    if len(rest) >= _FEWEST_BACK:
        found.back, found.is_over = int(steps[until]), True
        mine["after"] = float(np.median(rest)) - usual
        parts = np.array_split(rest, min(4, len(rest) // 8 or 1))
        variance = 1 / len(parts[0]) + _OF_LINE
        least = max(_HIGHER * deviation * variance**0.5, 0.01 * abs(usual))
        if len(rest) < FIRST_JUDGED:
            return
        if all(np.median(part) > usual + least for part in parts):
            found.kind, found.back, found.is_over = "shift", None, False
        elif mine["after"] > least:
            found.is_over = None
    elif not is_finite[-1]:
        found.kind, found.is_over = "end", False
    elif np.count_nonzero(inside > event.bound) >= FIRST_JUDGED:
        found.kind, found.is_over = "shift", False


def _look_at_norms(run: RecordedRun, found: Happening) -> None:
    last = min(found.last, found.first + _NORMS_STEPS)
    stop = int(np.searchsorted(run.tensor_steps, last, "right"))
    begin = int(np.searchsorted(run.tensor_steps, found.first))
    places = np.arange(max(0, begin - NUM_BEFORE), stop)
    steps, norms = run.tensor_steps[places], run.tensors("norm", places)
    found.finding = find_guilty(steps, norms, run.keys, found.first, last)
    inside = (run.step >= found.first) & (run.step <= found.last)
    inside &= run.step < found.first + _NORMS_STEPS
    is_skipped = run.column("skipped") == 1
    found.skipped = run.step[inside & is_skipped].tolist()
    norm = run.column("global_grad_norm")
    norm = np.where(inside & np.isfinite(norm), norm, np.nan)
    if np.isnan(norm).all():
        return
    at = int(np.nanargmax(norm))
    found.peak = found.peak or int(run.step[at])
    usual = _before(run, "global_grad_norm", found.first)
    found.numbers |= {"norm": float(norm[at]), "usual_norm": usual}
    if not is_skipped[at]:
        for name in ("left", "shadow_left"):
            column = name.replace("left", "clipped_grad_norm")
            found.numbers[name] = float(run.column(column)[at])


def _before(run: RecordedRun, name: str, step: int) -> float:
    values = run.column(name)[run.step < step]
    values = values[np.isfinite(values)][-32:]
    return float(np.median(values)) if len(values) else math.nan


# ---- why --------------------------------------------------------------------


def _cause(
    run: RecordedRun, event: Happening, firsts: Sequence[int]
) -> tuple[str, tuple[Any, ...]]:
    """Return the cause of an event, as far as the numbers tell one, and clues.

    ``"rate"`` (see :func:`_rate_change`), ``"nonfinite"``, ``"stale"`` second
    moments, ``"period"`` (its steps), ``"lasting"`` or ``"all"``: most tensors
    at once, ``"tensor"``, ``"layer"`` (its name), ``"several"`` tensors (their
    number), ``"labels"``, or ``""``.
    """
    guilty, share = event.finding.guilty, event.finding.share
    if rate := _rate_change(run, event.first):
        return "rate", rate
    if any(math.isinf(g.norm) for g in guilty):
        return "nonfinite", ()
    if _is_stale(run, event):
        return "stale", ()
    if period := _period(firsts):
        return "period", (period,)
    if not event.finding.is_known:
        return "", ()
    if share >= MOST:
        return ("lasting" if event.kind == "shift" else "all"), ()
    layers = {layer_of(g.key) for g in guilty}
    if len(guilty) > 1 and len(layers) == 1:
        return "layer", tuple(layers)
    if guilty:
        return ("several" if len(guilty) > 1 else "tensor"), (len(guilty),)
    is_calm = event["norm"] <= 1.5 * event["usual_norm"]
    return ("labels" if "loss" in event.series and is_calm else ""), ()


def _rate_change(
    run: RecordedRun, step: int
) -> tuple[int, float, float] | None:
    """Return a jump of the learning rate just before a step, if there is one.

    The warm-up's even steps are none.

    Returns:
        Step, the rate before it, and the highest one up to ``step``.
    """
    place = int(np.searchsorted(run.step, step))
    rate = run.column("learning_rate")[: place + 1]
    begin = max(FIRST_JUDGED, place - _RATE_STEPS)
    if not np.isfinite(rate).all() or (rate <= 0).any():
        return None
    change = np.diff(np.log(rate))
    for at in range(begin, len(rate)):
        usual = float(np.median(np.abs(change[max(0, at - 33) : at - 1])))
        if change[at - 1] > max(math.log(1.3), 8 * usual):
            highest = float(rate[at:].max())
            return int(run.step[at]), float(rate[at - 1]), highest
    return None


def _is_stale(run: RecordedRun, event: Happening) -> bool:
    """Whether norms that were usual long before came back, before the loss."""
    beta2 = run.sessions[-1].facts.get("beta2") if run.sessions else None
    is_first = event.norm_was_first or "loss" not in event.series
    if type(beta2) is not float or not 0 < beta2 < 1 or not is_first:
        return False
    place = int(np.searchsorted(run.step, event.first))
    norm = run.column("global_grad_norm")
    now = norm[place : place + 16]
    if len(now) < 4 or not np.isfinite(now).all():
        return False
    level = float(np.median(now))
    loud = np.flatnonzero(~(norm[:place] < level / 3))
    start = int(loud[-1]) + 1 if len(loud) else 0
    is_long = place - start >= 1 / (1 - beta2)
    earlier = norm[:start]
    return is_long and start >= 16 and float(np.median(earlier)) >= level / 3


def _period(firsts: Sequence[int]) -> int | None:
    """Return the distance of steps that recur evenly, four at least."""
    if len(firsts) < 4:
        return None
    distance = np.diff(np.array(firsts))
    middle = float(np.median(distance))
    is_even = np.abs(distance - middle).max() <= max(1.0, 0.05 * middle)
    return round(middle) if is_even and middle > 0 else None
