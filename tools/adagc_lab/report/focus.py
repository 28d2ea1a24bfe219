# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What figures show of single tensors: which ones, when, by what names."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from adagc_lab.record.files import RunRecord
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.judged import Jump, worst_jump
from paddle_adagc.spikes import group_events

STEPS_BEFORE = 40
STEPS_AFTER = 120
"""Steps shown before the event and after the worst of it."""

LEAD = 10
"""Steps before the event in which gradient norms may already rise."""

NUM_TENSORS = 3

_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.(.+)$")


class Focus(NamedTuple):
    """The event of the reference method that the figures show."""

    seed_index: int
    event: int
    """Step of the fault, or of the loss jump if there was no fault."""

    start: int
    stop: int
    """The figures show the steps ``start <= step < stop``."""

    tensors: list[str]
    """At most :data:`NUM_TENSORS` that were hit, the most affected first."""

    reason: str
    """Why this event, as the end of a sentence."""


def fault_bursts(run: RunRecord) -> list[tuple[int, int]]:
    """First and last step of each burst of faults, in order."""
    return list(group_events(sorted(run.faults), 1))


def choose_focus(experiment: Experiment) -> Focus | None:
    """Find the reference method's worst event and the tensors it hit.

    With faults: the burst of faults after which the reference's loss rose
    most, and the tensors that the fault names or, for a corrupted batch, those
    whose gradient norm rose most. Without faults: the largest loss jump and
    the tensors whose gradient norm rose most around it. None: the reference
    logged no tensors, or is too short to judge.
    """
    runs = experiment.runs[experiment.reference]
    found = [
        (jump.height, index, event, jump.step)
        for index, run in enumerate(runs)
        if run.tensor_names
        for event, jump in _events(run, experiment.skip_steps)
    ]
    if not found:
        return None
    _, index, event, peak = max(found, key=lambda item: item[0])
    run = runs[index]
    first = min(event, peak)
    start = max(0, first - STEPS_BEFORE)
    longest = max(r[index].num_steps for r in experiment.runs.values())
    stop = min(longest, peak + STEPS_AFTER)
    named = [
        tensor
        for step in range(event, peak + 1)
        for fault in run.faults.get(step, [])
        for tensor in fault["tensors"]
    ]
    ranked = _rank_tensors(run, start, first, peak)
    reason = (
        f"the largest loss jump of {experiment.reference}, at step {event:,}"
    )
    if run.faults:
        kinds = sorted({fault["kind"] for fault in run.faults[event]})
        reason = (
            f"the fault at step {event:,} ({', '.join(kinds)}), after which "
            f"the loss of {experiment.reference} rose most"
        )
    hit = [name for name in ranked if name in named] or ranked
    return Focus(
        seed_index=index,
        event=event,
        start=start,
        stop=stop,
        tensors=hit[:NUM_TENSORS],
        reason=reason,
    )


def _events(run: RunRecord, skip_steps: int) -> list[tuple[int, Jump]]:
    bursts = fault_bursts(run)
    if not bursts:
        jump = worst_jump(run, skip_steps)
        return [] if jump is None else [(jump.step, jump)]
    events = []
    ends = [first for first, _ in bursts[1:]] + [run.num_steps]
    for (first, last), end in zip(bursts, ends, strict=True):
        between = (first, min(end, last + STEPS_AFTER))
        jump = worst_jump(run, skip_steps, between)
        if jump is not None:
            events.append((first, jump))
    return events


def _rank_tensors(
    run: RunRecord, start: int, first: int, peak: int
) -> list[str]:
    """Sort the tensors by the rise of their gradient norm, largest first."""
    norm = run.tensors["norm"].astype(np.float64)
    norm = np.where(np.isfinite(norm), norm, np.inf)
    middle = max(start + 1, first - LEAD)
    with np.errstate(all="ignore"):
        usual = np.median(norm[start:middle], axis=0)
        rise = norm[middle : peak + 1].max(axis=0) / usual
    order = np.argsort(-np.nan_to_num(rise, nan=0.0), kind="stable")
    return [run.tensor_names[i] for i in order]


def tensor_label(name: str) -> str:
    """Shorten a tensor's name: ``"layer 0 · attention.q_proj"``."""
    match = _LAYER.search(name)
    if match is None:
        return _short(name)
    return f"layer {match[1]} · {_short(match[2])}"


def _short(name: str) -> str:
    name = re.sub(r"^(model|llama|decoder)\.", "", name)
    name = name.removesuffix(".weight")
    name = re.sub(r"^mlp\.experts\.(\d+)\.", r"expert \1 · ", name)
    return name.replace("self_attn", "attention").replace("_layernorm", "_norm")
