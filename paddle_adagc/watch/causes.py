# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Why something happened in a run, as far as its numbers tell. NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddle_adagc.watch.events import Happening
from paddle_adagc.watch.judge import FIRST_JUDGED
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.tensors import layer_of

_RATE_STEPS = 32
MOST = 0.5
"""Share of the tensors that is most of them."""


def find_cause(
    run: RecordedRun, event: Happening, events: Sequence[Happening]
) -> tuple[str, tuple[Any, ...]]:
    """Return the cause of an event, as far as the numbers tell one, and clues.

    ``"rate"`` (see :func:`_rate_change`); ``"nan"`` or ``"nonfinite"``: it
    began with the loss or a gradient; ``"stale"`` second moments, ``"period"``
    (its steps), ``"lasting"`` or ``"all"``: most tensors at once, ``"tensor"``,
    ``"layer"`` (its name), ``"several"`` tensors (their number), ``"labels"``,
    or ``""``.
    """
    guilty, share = event.finding.guilty, event.finding.share
    if rate := _rate_change(run, event):
        return "rate", rate
    if event.begins_with:
        return event.begins_with, ()
    if _is_stale(run, event):
        return "stale", ()
    same = [other.first for other in events if other.kind == event.kind]
    if period := _period(same):
        return "period", (period,)
    if not event.finding.is_known:
        return "", ()
    if share >= MOST:
        if event.kind.endswith("shift"):
            return "lasting", ()
        return "all", ("A batch" if event.is_short else "The data",)
    layers = {layer_of(g.key) for g in guilty}
    if len(guilty) > 1 and len(layers) == 1:
        return "layer", tuple(layers)
    if guilty:
        return ("several" if len(guilty) > 1 else "tensor"), (len(guilty),)
    is_calm = event["norm"] <= 1.5 * event["usual_norm"]
    return ("labels" if "loss" in event.series and is_calm else ""), ()


def _rate_change(
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


def _is_stale(run: RecordedRun, event: Happening) -> bool:
    """Whether norms that were usual long before came back, before the loss."""
    beta2 = run.facts(event.first).get("beta2")
    is_first = event.series.get("loss", math.inf) > event.first
    if type(beta2) is not float or not 0 < beta2 < 1 or not is_first:
        return False
    place = int(np.searchsorted(run.step, event.first))
    norm, left = map(run.column, ("global_grad_norm", "clipped_grad_norm"))
    norm = np.where(np.isfinite(left), left, norm)  # what the optimizer saw
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
