# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What happened in a recorded run, looked at to its end. NumPy alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from paddle_adagc.watch.judge import (
    EVENT_GAP,
    FIRST_JUDGED,
    RULES,
    Event,
    Judge,
)
from paddle_adagc.watch.store import RecordedRun
from paddle_adagc.watch.tensors import Finding, find_guilty

_JUDGED = (
    *("loss", "global_grad_norm", "nonfinite", "h_median", "warm_up"),
    *("small_second_moment", "stuck", "step_seconds"),
)
_FEWEST_BACK = 3  # steps that prove a loss to be usual again
_HIGHER = 5.0  # standard errors by which a loss stays higher
_OF_LINE = 0.1  # variance of the end of a line through 64 values, over theirs
_BEFORE = 256  # rows of tensors before an event
_RATE_STEPS = 32
_BATCH_SHARE = 0.5
SHORT = 4
"""Steps that a single batch may take at most."""

Known: TypeAlias = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Series -> steps and values where one was recorded, be it NaN."""


@dataclasses.dataclass
class Happening:
    """An event of the loss, the global norm, or single tensors."""

    kind: str
    """``"spike"``: it comes back, or is too young to know; ``"shift"``: it
    does not; ``"end"``: the loss is not finite to the end; ``"tensor"``:
    neither the loss nor the global norm rose."""

    first: int
    """The event's step: the first abnormal one."""

    last: int
    """The last one before it was usual again, or the run's last."""

    series: list[str]
    norm_first: int | None = None
    """First step with an abnormal norm, if it is before the loss."""

    loss: float = math.nan
    """The highest; NaN if it was not finite or not recorded."""

    peak: int = 0
    """Step of that loss, or of the highest norm."""

    usual_loss: float = math.nan
    excess: float = math.nan
    """Sum of the loss over usual, from ``first`` to ``last``."""

    noise: float = math.nan
    """Standard deviation of such a sum where nothing happens."""

    back: int | None = None
    """First step of the usual loss again; None: not, or not known."""

    is_over: bool | None = None
    """Whether it came back; None: not known, or only in part."""

    after: float = math.nan
    """Median loss from ``back`` on to the run's end, over usual."""

    norm: float = math.nan
    """Highest global norm of the event, and the norms left there."""

    usual_norm: float = math.nan
    left: float = math.nan
    shadow_left: float = math.nan
    skipped: list[int] = dataclasses.field(default_factory=list)
    finding: Finding = Finding([], 0.0, is_known=False)  # noqa: RUF009
    cause: str = ""
    why: str = ""


def happenings(run: RecordedRun) -> tuple[list[Happening], list[Event]]:
    """Return the events in the order of their steps, and lasting states."""
    judge, found = Judge(), list[Event]()
    for step, row in zip(run.step.tolist(), run.rows, strict=True):
        known = {n: row[n] for n in _JUDGED if is_number(row.get(n))}
        found += judge.add(step, known)
    states = [e for e in found if e.kind == "state" or e.series == "stuck"]
    spikes = [e for e in found if e.kind in ("spike", "end")]
    known = {name: _recorded(run, name) for name in RULES}
    groups = _groups(known, [e for e in spikes if e.series != "stuck"])
    events = [_happening(run, known, group) for group in groups]
    taken = [(e.first - EVENT_GAP, e.last + EVENT_GAP) for e in events]
    events += _of_tensors(run, taken)
    return sorted(events, key=lambda e: e.first), states


def at_step(run: RecordedRun, step: int) -> Happening:
    """Look at a step as if an event had begun there."""
    return _happening(run, {}, [Event("spike", "step", step, math.nan)])


def is_number(value: Any) -> bool:
    """Whether a value of a row counts: NaN does, a text does not."""
    return type(value) in (int, float)


def _recorded(run: RecordedRun, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values where one was recorded, be it NaN."""
    known = [is_number(row.get(name)) for row in run.rows]
    return run.step[known], run.column(name)[known]


def _groups(known: Known, events: Sequence[Event]) -> list[list[Event]]:
    """Join events of several series that lie close to each other."""
    groups: list[list[Event]] = []
    end = -math.inf
    for event in events:
        if event.step - end > EVENT_GAP:
            groups.append([])
        groups[-1].append(event)
        end = max(end if len(groups[-1]) > 1 else 0, _last(known, event))
    return groups


def _last(known: Known, event: Event) -> int:
    """Return the last abnormal step before ten calm ones."""
    if event.kind != "end" and not math.isfinite(event.bound):
        return event.step
    steps, values = known[event.series]
    place = int(np.searchsorted(steps, event.step))
    steps, values = steps[place:], values[place:]
    is_high = ~np.isfinite(values)
    if event.kind != "end":
        is_high |= values > event.bound
    highs = np.flatnonzero(is_high)
    gaps = np.flatnonzero(np.diff(highs) > EVENT_GAP)
    last = int(highs[gaps[0]] if len(gaps) else highs[-1]) if len(highs) else 0
    return int(steps[last])


def _happening(
    run: RecordedRun, known: Known, events: Sequence[Event]
) -> Happening:
    first = min(event.step for event in events)
    last = max(_last(known, event) for event in events)
    found = Happening(
        "spike", first, last, [*dict.fromkeys(e.series for e in events)]
    )
    of_loss = [e for e in events if e.series == "loss"]
    if of_loss:
        _look_at_loss(*known["loss"], found, of_loss)
        norm_first = min(e.step for e in events)
        if norm_first < of_loss[0].step:
            found.norm_first = norm_first
    else:
        left = np.count_nonzero(run.step > last)
        found.is_over = True if left >= _FEWEST_BACK else None
        if left < _FEWEST_BACK and last - first >= FIRST_JUDGED:
            found.kind, found.is_over = "shift", False
        loss = run.column("loss")[np.searchsorted(run.step, first)]
        found.loss, found.usual_loss = float(loss), _before(run, "loss", first)
    _look_at_norms(run, found)
    _look_at_tensors(run, found)
    return found


def _look_at_loss(
    steps: np.ndarray,
    loss: np.ndarray,
    found: Happening,
    events: Sequence[Event],
) -> None:
    """Say what the loss did from the event on to the end of the run."""
    event = events[0]
    place = int(np.searchsorted(steps, event.step))
    until = int(np.searchsorted(steps, found.last, "right"))
    usual = event.usual
    past = loss[max(0, place - 64) : place]
    past = past[np.isfinite(past)]
    if not math.isfinite(usual) and len(past):
        usual = float(np.median(past[-32:]))
    found.usual_loss = usual
    inside, rest = loss[place:until], loss[until:]
    rest = rest[np.isfinite(rest)]
    finite = np.where(np.isfinite(inside), inside, -np.inf)
    worst = int(np.argmax(finite)) if len(inside) else 0
    if not np.isfinite(inside).all():
        worst = int(np.flatnonzero(~np.isfinite(inside))[0])
    found.loss, found.peak = float(inside[worst]), int(steps[place + worst])
    deviation = math.nan
    if len(past) > 2:  # of neighbours: without the descent
        deviation = 1.4826 * float(np.median(np.abs(np.diff(past)))) / 2**0.5
    if np.isfinite(inside).all():
        found.excess = float((inside - usual).sum())
        found.noise = deviation * math.sqrt(len(inside))
    if len(rest) >= _FEWEST_BACK:
        found.back, found.is_over = int(steps[until]), True
        found.after = float(np.median(rest)) - usual
        parts = np.array_split(rest, min(4, len(rest) // 8 or 1))
        variance = 1 / len(parts[0]) + _OF_LINE
        least = max(_HIGHER * deviation * variance**0.5, 0.01 * abs(usual))
        if len(rest) < FIRST_JUDGED:
            return
        if all(np.median(part) > usual + least for part in parts):
            found.kind, found.back, found.is_over = "shift", None, False
        elif found.after > least:
            found.is_over = None
    elif not np.isfinite(inside[-1:]).all():
        found.kind, found.is_over = "end", False
    elif np.count_nonzero(inside > event.bound) >= FIRST_JUDGED:
        found.kind, found.is_over = "shift", False


def _look_at_norms(run: RecordedRun, found: Happening) -> None:
    inside = (run.step >= found.first) & (run.step <= found.last)
    inside &= run.step < found.first + 64
    norm = np.where(inside, run.column("global_grad_norm"), np.nan)
    is_skipped = run.column("skipped") == 1
    found.skipped = run.step[inside & is_skipped].tolist()
    if not np.isfinite(norm).any():
        return
    at = int(np.nanargmax(np.where(np.isinf(norm), np.nan, norm)))
    found.norm = float(norm[at])
    found.peak = found.peak or int(run.step[at])
    found.usual_norm = _before(run, "global_grad_norm", found.first)
    if not is_skipped[at]:
        found.left = float(run.column("clipped_grad_norm")[at])
        shadow = run.column("shadow_clipped_grad_norm")[at]
        found.shadow_left = float(shadow)


def _before(run: RecordedRun, name: str, step: int) -> float:
    values = run.column(name)[run.step < step]
    values = values[np.isfinite(values)][-32:]
    return float(np.median(values)) if len(values) else math.nan


def _look_at_tensors(run: RecordedRun, found: Happening) -> None:
    last = min(found.last, found.first + 64)
    stop = int(np.searchsorted(run.tensor_steps, last, "right"))
    begin = int(np.searchsorted(run.tensor_steps, found.first))
    places = np.arange(max(0, begin - _BEFORE), stop)
    norms = run.tensors("norm", places)
    found.finding = find_guilty(
        run.tensor_steps[places], norms, run.keys, found.first, last
    )


def _of_tensors(
    run: RecordedRun, taken: Sequence[tuple[int, int]]
) -> list[Happening]:
    """Find tensors far from their usual norms, outside of other events."""
    is_far = run.column("tensor_norm") > 1
    abnormal = run.step[is_far & np.isin(run.step, run.tensor_steps)].tolist()
    found: list[Happening] = []
    for step in abnormal:
        if any(first <= step <= last for first, last in taken):
            continue
        if found and step - found[-1].last <= EVENT_GAP:
            found[-1].last = step
            continue
        found.append(Happening("tensor", step, step, ["tensor_norm"]))
    for event in found:
        event.peak = event.first
        _look_at_norms(run, event)
        _look_at_tensors(run, event)
        event.is_over = True
    return [e for e in found if e.finding.guilty]


# ---- why --------------------------------------------------------------------


def explain(
    run: RecordedRun, event: Happening, events: Sequence[Happening]
) -> None:
    """Set the cause of an event, as far as the numbers tell one."""
    finding = event.finding
    guilty, share = finding.guilty, finding.share
    names = [g.key for g in guilty]
    layers = {g.layer for g in guilty}
    nonfinite = [g.key for g in guilty if math.isinf(g.norm)]
    rate = rate_change(run, event.first)
    if rate:
        step, old, new = rate
        event.cause = "rate"
        event.why = (
            f"The learning rate rose from {old:.3g} to {new:.3g} at step {step}"
        )
    elif nonfinite:
        event.cause = "nonfinite"
        more = f" and {len(nonfinite) - 1} more" * (len(nonfinite) > 1)
        event.why = f"Inf or NaN in the gradient of {nonfinite[0]}{more}"
    elif _is_stale(run, event):
        event.cause = "stale"
        event.why = (
            "The norm rose from a long low: the second moments had forgotten "
            "such gradients"
        )
    elif period := period_of([e.first for e in events if e.kind != "tensor"]):
        event.cause = "period"
        event.why = f"It recurs every {period} steps"
    elif not finding.is_known:
        return
    elif event.kind == "shift" and share >= _BATCH_SHARE:
        event.cause = "lasting"
        event.why = "All tensors at once, and it lasts: no single batch"
    elif share >= _BATCH_SHARE:
        event.cause = "all"
        is_short = event.last - event.first < SHORT
        what = "a batch" if is_short else "the data"
        event.why = f"All tensors at once: {what}, or the optimizer"
    elif len(names) == 1:
        event.cause, event.why = "tensor", f"One tensor: {names[0]}"
    elif guilty and len(layers) == 1:
        event.cause, event.why = "layer", f"One layer: {guilty[0].layer}"
    elif guilty:
        event.cause, event.why = "several", f"{len(names)} tensors, not all"
    elif "loss" in event.series and event.norm <= 1.5 * event.usual_norm:
        event.cause = "labels"
        event.why = "The norms stayed usual while the loss rose: perhaps labels"


def rate_change(run: RecordedRun, step: int) -> tuple[int, float, float] | None:
    """Return a jump of the learning rate just before a step, if there is one.

    The warm-up's even steps are none.

    Returns:
        Step, the rate before it, and the highest one up to ``step``.
    """
    place = int(np.searchsorted(run.step, step))
    rate = run.column("learning_rate")[: place + 1]
    begin = max(FIRST_JUDGED, place - _RATE_STEPS)
    if not np.isfinite(rate).all() or len(rate) <= begin or (rate <= 0).any():
        return None
    change = np.diff(np.log(rate))
    for at in range(begin, len(rate)):
        usual = float(np.median(np.abs(change[max(0, at - 33) : at - 1])))
        if change[at - 1] > max(math.log(1.3), 8 * usual):
            new = float(rate[at:].max())
            return int(run.step[at]), float(rate[at - 1]), new
    return None


def _is_stale(run: RecordedRun, event: Happening) -> bool:
    """Whether norms that were usual long before came back, before the loss."""
    beta2 = run.sessions[-1].facts.get("beta2") if run.sessions else None
    is_first = event.norm_first is not None or "loss" not in event.series
    if type(beta2) is not float or not 0 < beta2 < 1 or not is_first:
        return False
    place = int(np.searchsorted(run.step, event.first))
    norm = run.column("global_grad_norm")
    now = norm[place : place + 16]
    if len(now) < 4 or not np.isfinite(now).all():
        return False
    level = float(np.median(now))
    quiet = norm[:place] < level / 3
    start = int(np.flatnonzero(~quiet)[-1]) + 1 if (~quiet).any() else 0
    earlier = norm[:start]
    is_long = place - start >= 1 / (1 - beta2)
    return is_long and start >= 16 and float(np.median(earlier)) >= level / 3


def period_of(firsts: Sequence[int]) -> int | None:
    """Return the distance of steps that recur evenly, four at least."""
    if len(firsts) < 4:
        return None
    distance = np.diff(np.array(firsts))
    middle = float(np.median(distance))
    is_even = np.abs(distance - middle).max() <= max(1.0, 0.05 * middle)
    return round(middle) if is_even and middle > 0 else None
