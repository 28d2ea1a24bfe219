# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which event figures show, and which tensors it hit."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from adagc_lab.record.files import RunRecord
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.judged import model_loss
from adagc_lab.report.measures import rises

STEPS_BEFORE = 40
STEPS_AFTER = 120
"""Steps shown before the event and after the worst of it."""

LEAD = 10
"""Steps before the event in which gradient norms may already rise."""

NUM_TENSORS = 3


class Focus(NamedTuple):
    """The event of the reference method that the figures show."""

    seed_index: int
    start: int
    stop: int
    """The figures show the steps ``start <= step < stop``."""

    tensors: list[str]
    """At most :data:`NUM_TENSORS`, whose gradient norm rose most, largest
    first."""

    reason: str
    """Why this event."""


def fault_bursts(run: RunRecord) -> list[tuple[int, int]]:
    """First and last step of each burst of faults, in order."""
    bursts: list[tuple[int, int]] = []
    for step in sorted(run.faults):
        if bursts and step == bursts[-1][1] + 1:
            bursts[-1] = bursts[-1][0], step
        else:
            bursts.append((step, step))
    return bursts


def choose_focus(experiment: Experiment) -> Focus | None:
    """Find the worst rise of the reference method's loss, and its tensors.

    If a burst of faults began at most :data:`STEPS_AFTER` steps before, the
    event is the burst. None: the reference logged no tensors, or is too short
    to judge.
    """
    found = [
        (*worst, index)
        for index, run in enumerate(experiment.runs[experiment.reference])
        if run.tensor_names
        and (worst := _worst_rise(run, experiment.skip_steps))
    ]
    if not found:
        return None
    _, peak, index = max(found)
    run = experiment.runs[experiment.reference][index]
    before = [
        first
        for first, _ in fault_bursts(run)
        if first <= peak < first + STEPS_AFTER
    ]
    event = before[-1] if before else peak
    start = max(0, event - STEPS_BEFORE)
    of_seed = [runs[index] for runs in experiment.runs.values()]
    longest = max(run.num_steps for run in of_seed)
    reason = (
        f"the worst rise of {experiment.reference}'s loss, at step {peak:,}"
    )
    if before:
        kinds = sorted({fault["kind"] for fault in run.faults[event]})
        reason += f", after the fault at step {event:,} ({', '.join(kinds)})"
    return Focus(
        seed_index=index,
        start=start,
        stop=min(longest, peak + STEPS_AFTER),
        tensors=_rank_tensors(run, start, event, peak)[:NUM_TENSORS],
        reason=reason,
    )


def _worst_rise(run: RunRecord, skip_steps: int) -> tuple[float, int] | None:
    """Return the largest rise and its step; of a diverged run its end."""
    loss = model_loss(run)
    loss[:skip_steps] = np.nan
    if run.run.get("status") == "diverged":
        lost = np.flatnonzero(~np.isfinite(run.loss))
        return np.inf, int(lost[0]) if len(lost) else run.num_steps - 1
    rise = rises(loss)
    if np.isnan(rise).all():
        return None
    step = int(np.nanargmax(rise))
    return float(rise[step]), step


def _rank_tensors(
    run: RunRecord, start: int, first: int, peak: int
) -> list[str]:
    """Sort the tensors by the rise of their gradient norm, largest first."""
    norm = run.tensors["norm"].astype(np.float64)
    norm = np.where(np.isfinite(norm), norm, np.inf)
    middle = max(start + 1, first - LEAD)
    with np.errstate(all="ignore"):
        usual = np.median(norm[start:middle], axis=0)
        rise = norm[middle : peak + 1].max(axis=0, initial=0.0) / usual
    order = np.argsort(-np.nan_to_num(rise, nan=0.0), kind="stable")
    return [run.tensor_names[i] for i in order]


def tensor_label(name: str) -> str:
    """Shorten a tensor's name, on two lines: ``"layers.0\\nmlp.up_proj"``."""
    short = name.removeprefix("model.").removesuffix(".weight")
    return re.sub(r"^(.*?\.\d+)\.", r"\1\n", short)
