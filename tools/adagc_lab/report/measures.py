# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run says: a row of its facts, and measures of its losses."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from adagc_lab.checksums import first_digits
from adagc_lab.record.files import RunRecord
from adagc_lab.report.judged import judged_steps, memorises

PEAK = 0.5
"""Nat above the level before that make a peak of noisy text or of a fault."""

LOW_NOISE_PEAK = 0.1
"""The same where a few sequences are learnt by heart: the loss is about 0.06
there, and its standard deviation below 0.01."""

BEFORE = 50
"""Losses before a step whose median is its level."""

GAP = 10
"""Steps below the height that end a peak."""

END = 500
"""Last steps of a run, whose losses are its end."""

_WINDOW = 1000
"""Steps from the first fault over which ``damage_at_first`` is a mean."""

_EARLY = slice(1000, 1500)  # steps whose losses stand beside the last ones

_EARLY_UPDATES = slice(100, 1000)

Row = dict[str, Any]
"""A run: what :func:`describe_run` returns, perhaps with more keys."""


def describe_run(record: RunRecord, skip_steps: int) -> Row:
    """Return a run's facts and numbers; ``loss`` is float64 ``[num_steps]``.

    The first ``skip_steps`` steps will not be judged. A number that the run
    does not have is None or missing.
    """
    facts = record.run
    # A clip that zeroes NaN keeps the weights finite, whatever the loss.
    is_dead = record.num_steps and not np.isfinite(record.loss[-1])
    left_out = np.setdiff1d(np.arange(record.num_steps), judged_steps(record))
    row = {
        "steps": record.num_steps,
        "processor": facts.get("machine", {}).get("processor", ""),
        "status": "diverged" if is_dead else facts.get("status", ""),
        "skip_steps": skip_steps,
        "faults": spans(record.faults),
        "left_out": spans(left_out),
        "commit": facts.get("commit") or "",
        "data": first_digits(facts.get("data", {})),
        "retrieval_accuracy": _last(record, "retrieval_accuracy"),
        "step_ms": _median_ms(record, "step_seconds"),
        "clip_ms": _median_ms(record, "clip_seconds"),
        "num_losses": record.num_steps,
        "loss": record.loss,
    }
    if not memorises(record):
        found = _last(record, "eval_loss")  # maybe of before it died
        row["validation_loss"] = math.inf if is_dead else found
    updates = record.metrics.get("update_norm", np.zeros(0))[_EARLY_UPDATES]
    if updates.size:
        row["early_update_norm"] = float(np.mean(updates))
    if (h := record.h).size:
        known = h[100:][np.isfinite(h[100:])]
        if known.size:
            row["h_median"] = float(np.median(known))
            row["smallest_h"] = float(known.min())
            row["clipped_percent"] = 100 * float(np.mean(known < 1))
    return row


def _known(record: RunRecord, name: str) -> np.ndarray:
    values = record.metrics.get(name, np.full(1, np.nan))
    return values[np.isfinite(values)]


def _last(record: RunRecord, name: str) -> float | None:
    known = _known(record, name)
    return float(known[-1]) if known.size else None


def _median_ms(record: RunRecord, name: str) -> float | None:
    known = _known(record, name)
    return 1000 * float(np.median(known)) if known.size else None


def spans(steps: Iterable[int]) -> str:
    """Return steps as ``"1200-1204;1350-1350"``."""
    found: list[list[int]] = []
    for step in sorted(steps):
        if found and step == found[-1][1] + 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    return ";".join(f"{first}-{last}" for first, last in found)


def steps_of(text: str) -> list[int]:
    """Return the steps of :func:`spans`."""
    found: list[int] = []
    for part in filter(None, text.split(";")):
        first, last = part.split("-")
        found += range(int(first), int(last) + 1)
    return found


def judged(row: Row) -> np.ndarray:
    """Losses that say something about the model, NaN elsewhere.

    Left out are the first ``skip_steps`` and the corrupted batches.
    """
    loss = np.array(row["loss"], np.float64)
    loss[: row["skip_steps"]] = np.nan
    left_out = [step for step in steps_of(row["left_out"]) if step < len(loss)]
    loss[left_out] = np.nan
    return loss


def rises(loss: np.ndarray) -> np.ndarray:
    """Return each loss minus the median of the :data:`BEFORE` before it.

    ``loss`` and the result are ``[num_steps]``; losses that are not finite
    count as absent. NaN where fewer losses come before.
    """
    found = np.full(len(loss), np.nan)
    steps = np.flatnonzero(np.isfinite(loss))
    if len(steps) > BEFORE:
        known = loss[steps]
        before = np.lib.stride_tricks.sliding_window_view(known, BEFORE)[:-1]
        found[steps[BEFORE:]] = known[BEFORE:] - np.median(before, axis=1)
    return found


def peaks(loss: np.ndarray, height: float = PEAK) -> list[float]:
    """Return how high each peak is, over the median of the losses before it.

    A step is in a peak if its loss is ``height`` above the median of the
    :data:`BEFORE` judged losses before; steps at most :data:`GAP` apart are
    in one. Every judged step with that many before it counts.
    """
    rise = rises(loss)[np.isfinite(loss)]
    return [float(rise[steps].max()) for steps in _groups(rise, height)]


def shared_peaks(row: Row, other: Row) -> int:
    """Return how many peaks of a run share a step with a peak of the other."""
    rise, others = (rises(judged(each)) for each in (row, other))
    high = np.flatnonzero(others > PEAK)
    return sum(bool({*steps} & {*high}) for steps in _groups(rise, PEAK))


def _groups(rise: np.ndarray, height: float) -> list[np.ndarray]:
    """Return the steps of each group of steps above ``height``."""
    steps = np.flatnonzero(rise > height)
    if not len(steps):
        return []
    return np.split(steps, np.flatnonzero(np.diff(steps) > GAP) + 1)


def measure(row: Row) -> dict[str, float]:
    """Return what a run's losses say; nothing of a run without losses."""
    if not row["num_losses"]:
        return {}
    loss = judged(row)
    if row["status"] == "diverged" or not np.isfinite(loss).any():
        names = ("worst", "mean", "end", "end_median")
        return {"peaks": 1.0, "low_peaks": 1.0, **dict.fromkeys(names, np.inf)}
    found = peaks(loss)
    low = peaks(loss, LOW_NOISE_PEAK)
    known = loss[np.isfinite(loss)]
    early = float(loss[_EARLY].mean()) if len(loss) > 1500 else np.nan
    return {
        "peaks": float(len(found)),
        "low_peaks": float(len(low)),
        "worst": max(low, default=0.0),
        "mean": float(known.mean()),
        "early": early,
        "end": float(known[-END:].mean()),
        "change": float(known[-END:].mean()) - early,
        "end_median": float(np.median(known[-END:])),
    }


def damage(row: Row, clean: Row) -> dict[str, float]:
    """Compare a run with faults with another without them, same batches.

    ``damage`` is the mean loss above the other's over the judged steps from the
    first fault to the end, in nat; ``damage_at_first`` that of the first 1,000;
    ``fault_peaks`` counts the peaks of the excess. A run that diverged is
    infinitely far above. Nothing if no step can be compared.
    """
    if row["status"] == "diverged":
        names = ("damage", "damage_at_first", "worst_rise")
        return {"fault_peaks": 1.0, **dict.fromkeys(names, np.inf)}
    loss, other = judged(row), judged(clean)
    number = min(len(loss), len(other))
    first = min(steps_of(row["faults"]))
    excess = (loss[:number] - other[:number])[first:]
    at_first = excess[:_WINDOW][np.isfinite(excess[:_WINDOW])]
    excess = excess[np.isfinite(excess)]
    if not at_first.size:
        return {}
    # A peak begins above 0.2 nat, and ends when it stays below.
    found = [x for x in _groups(excess, 0.2) if excess[x].max() > PEAK]
    return {
        "damage": float(excess.mean()),
        "damage_at_first": float(at_first.mean()),
        "fault_peaks": float(len(found)),
        "worst_rise": float(excess.max()),
    }
