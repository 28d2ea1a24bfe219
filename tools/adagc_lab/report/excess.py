# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paired excess: what a fault costs against the same run without it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from paddle_adagc.checks import check_integer, check_positive, check_series
from paddle_adagc.stability.spike_score import count_events, group_events

_SMOOTHING = 10
"""Number of judged steps that the excess is averaged over for the recovery."""

_RECOVERED_BELOW = 0.1  # nat


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
    losses: Sequence[float] | np.ndarray,
    reference: Sequence[float] | np.ndarray,
    fault_steps: Iterable[int],
    *,
    exclude_steps: Iterable[int] = (),
    thresholds: Sequence[float] = (0.2, 0.5),
) -> PairedExcess:
    """Compare a run with faults to the same run without them.

    Both runs have the same seed and the same batches, so batch noise cancels
    and a damage far below ten standard deviations of the loss is seen.

    Recovery: within the steps from a burst's last step to the next burst (or
    the end), the excess is smoothed by the mean of a judged step and the 9
    judged ones after it. The excess is gone at the first step from which every
    such mean is below 0.1 nat. The last mean is that of the last 10 judged
    steps (of all, if there are fewer).

    A step is left out if it is in ``exclude_steps`` or if the reference's loss
    is not finite there.

    Args:
        losses: ``[num_steps]``, of the run with faults.
        reference: ``[num_steps]``, of the run without. Pad a run that stopped
            early with NaN.
        fault_steps: Steps at which a fault was injected, at least one.
        exclude_steps: Steps whose loss is itself that of a corrupted batch or
            activation, which says nothing about the model.
        thresholds: Events are counted above each, in nat. Steps above the
            lowest that are at most 10 apart are one event.

    Raises:
        TypeError: A series is not numeric, or a step is not an integer.
        ValueError: The lengths differ, no fault is given, a fault lies outside
            the series, or a threshold is not positive.
    """
    faulty = check_series("losses", losses)
    clean = check_series("reference", reference)
    if faulty.size != clean.size:
        raise ValueError(
            f"losses has {faulty.size} steps, reference {clean.size}: pad the "
            "shorter run with NaN, or cut both to the same length"
        )
    for threshold in thresholds:
        check_positive("threshold", threshold)
    faults = sorted({check_integer("fault step", s, 0) for s in fault_steps})
    if not faults:
        raise ValueError("fault_steps is empty: a paired excess needs a fault")
    if faults[-1] >= faulty.size:
        raise ValueError(
            f"fault step {faults[-1]} lies outside the {faulty.size} steps"
        )
    with np.errstate(invalid="ignore"):
        excess = np.where(np.isfinite(faulty), faulty - clean, np.inf)
    excess[~np.isfinite(clean)] = np.nan
    excess[[s for s in exclude_steps if 0 <= s < excess.size]] = np.nan
    steps = faults[0] + np.flatnonzero(~np.isnan(excess[faults[0] :]))
    judged = excess[steps]
    bursts = group_events(faults, 1)
    ends = [first for first, _ in bursts[1:]] + [excess.size]
    recoveries = [
        _recovery(excess[last + 1 : end])
        for (_, last), end in zip(bursts, ends, strict=True)
    ]
    return PairedExcess(
        excess=excess,
        num_events=count_events(steps, judged, thresholds),
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
