# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paired excess: what a fault costs against the same run without it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from paddle_adagc.spikes import group_events

EXCESS_THRESHOLDS = (0.2, 0.5)
"""Excesses above which events are counted, in nat."""

_SMOOTHING = 10
"""Number of judged steps that the excess is averaged over for the recovery."""

_RECOVERED_BELOW = 0.1  # nat


def count_events(
    steps: np.ndarray, values: np.ndarray, thresholds: Sequence[float]
) -> dict[float, int]:
    """Count events above each threshold; a higher one never has more.

    Events are delimited once, at the lowest threshold: an event ends when the
    values stay at or below it for more than 10 steps. Above a
    higher threshold count the events whose largest value exceeds it.
    (Delimited at every threshold anew, one event with a dip would be one event
    at a low threshold and two at a higher one.) Steps, which ascend, and values
    are ``[num_values]``.
    """
    largest = [
        values[(steps >= first) & (steps <= last)].max()
        for first, last in group_events(steps[values > min(thresholds)])
    ]
    return {
        threshold: sum(peak > threshold for peak in largest)
        for threshold in thresholds
    }


@dataclass(frozen=True, eq=False)
class PairedExcess:
    """Damage of the faults, in nat, over the steps from the first one on."""

    excess: np.ndarray
    """Loss with faults minus loss without, float64 ``[num_steps]``. +Inf where
    only the faulty run's loss is not finite, NaN where left out."""

    num_events: dict[float, int]
    """Per threshold, in nat: events with an excess above it. They are
    delimited once, at the lowest threshold."""

    area: float
    """Sum of the excess, in nat x steps. Signed: noise cancels out."""

    worst: float
    """Largest excess, in nat; NaN if no step was judged."""

    steps_to_recover: int | None
    """Steps after a burst of consecutive faulty steps until the excess is gone,
    0 if it never showed: the longest of all bursts. None if after one it is not
    gone before the next, or before the end."""


def paired_excess(
    losses: np.ndarray,
    reference: np.ndarray | None,
    faults: Iterable[int],
    left_out: Iterable[int] = (),
    has_diverged: bool = False,
) -> PairedExcess | None:
    """Compare a run with faults to the same run without them.

    Both runs have the same seed and the same batches, so batch noise cancels
    and a damage far below ten standard deviations of the loss is seen. Of runs
    of two lengths the shorter one counts; but a run that diverged is infinitely
    far above to the end of the other.

    Recovery: within the steps from a burst's last step to the next burst (or
    the end), the excess is smoothed by the mean of a judged step and the 9
    judged ones after it. The excess is gone at the first step from which every
    such mean is below 0.1 nat. The last mean is that of the last 10 judged
    steps (of all, if there are fewer).

    Args:
        losses: ``[num_steps]``, of the run with faults.
        reference: Of the run without; None: there is none.
        faults: Steps at which a fault was injected.
        left_out: Steps whose loss is itself that of a corrupted batch, which
            says nothing about the model. So is a step in which the reference's
            loss is not finite.
        has_diverged: The run stopped at a loss that was not finite.

    Returns:
        The damage; None without a reference, or a fault in what both have.
    """
    if reference is None:
        return None
    num_steps = min(len(losses), len(reference))
    missing = len(reference) - num_steps if has_diverged else 0
    faulty = np.pad(losses[:num_steps], (0, missing), constant_values=np.nan)
    clean = reference[: len(faulty)]
    starts = sorted({step for step in faults if step < len(faulty)})
    if not starts:
        return None
    with np.errstate(invalid="ignore"):
        excess = np.where(np.isfinite(faulty), faulty - clean, np.inf)
    excess[~np.isfinite(clean)] = np.nan
    excess[[step for step in left_out if step < excess.size]] = np.nan
    steps = starts[0] + np.flatnonzero(~np.isnan(excess[starts[0] :]))
    judged = excess[steps]
    bursts = group_events(starts, 1)
    ends = [first for first, _ in bursts[1:]] + [excess.size]
    recoveries = [
        _recovery(excess[last + 1 : end])
        for (_, last), end in zip(bursts, ends, strict=True)
    ]
    return PairedExcess(
        excess=excess,
        num_events=count_events(steps, judged, EXCESS_THRESHOLDS),
        area=float(judged.sum()),
        worst=float(judged.max()) if judged.size else math.nan,
        steps_to_recover=(
            None if None in recoveries else max(x or 0 for x in recoveries)
        ),
    )


def _recovery(excess: np.ndarray) -> int | None:
    """Count the steps until the excess is gone; None if it does not go."""
    steps = np.flatnonzero(~np.isnan(excess))
    if not steps.size:
        return None
    size = min(_SMOOTHING, steps.size)
    means = sliding_window_view(excess[steps], size).mean(axis=1)
    gone = max(1 + np.flatnonzero(means >= _RECOVERED_BELOW), default=0)
    if gone == len(means):
        return None
    return int(steps[gone]) if gone else 0
