# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tensors began an event. NumPy alone.

A tensor's usual norm is the median over steps just before. It is never compared
with other tensors: many always are clipped hard, and that says nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from paddle_adagc.watch.judge import EVENT_GAP, NORMAL_CONSISTENCY

NUM_BEFORE = 256
"""Rows before an event that say what is usual."""

_WINDOW = 128
_FIRST_JUDGED = 16
_NUM_MIDDLE = 32  # rows that say how large a norm is
_SMALLEST_DEVIATION = 0.02  # of log norms: 2%
_SCORE, _RATIO = 8.0, 1.5
"""A norm is abnormal above both: deviations, times its usual norm."""

_RAISED_SCORE, _RAISED_RATIO = 2.0, 1.3
"""A ruined batch raises all tensors, but unequally: few may be abnormal. In a
calm step few are above two deviations."""

_ONSET_STEPS = 64
"""How far before the event a tensor may have begun."""


@dataclasses.dataclass(frozen=True)
class Usual:
    """Usual norms of tensors, each ``[num_tensors]``; NaN where unknown."""

    norm: np.ndarray
    deviation: np.ndarray
    """Standard deviation of the norm's logarithm about a straight line."""

    @classmethod
    def of(cls, norms: np.ndarray) -> Usual:
        """Measure norms ``[num_steps, num_tensors]``; 0, Inf, NaN are none."""
        with np.errstate(all="ignore"):
            logs = np.log(norms.astype(np.float64))
        logs[~np.isfinite(logs)] = np.nan
        logs[:, (~np.isnan(logs)).sum(0) < _FIRST_JUDGED] = np.nan
        half = max(len(logs) // 2, 1)
        slope = (medians(logs[half:]) - medians(logs[:half])) / half
        left = logs - np.nan_to_num(slope) * np.arange(len(logs))[:, None]
        spread = NORMAL_CONSISTENCY * medians(np.abs(left - medians(left)))
        norm = np.exp(medians(logs[-_NUM_MIDDLE:]))
        return cls(norm, np.maximum(spread, _SMALLEST_DEVIATION))

    def excess(
        self, norms: np.ndarray, score: float = _SCORE, ratio: float = _RATIO
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return norm over usual, and whether that is abnormal.

        Both ``[num_steps, num_tensors]``. Inf, of a gradient with Inf or NaN,
        is abnormal; NaN, a norm not known, is not.
        """
        with np.errstate(all="ignore"):
            excess = norms / self.norm
            is_abnormal = np.log(excess) / self.deviation > score
        is_nonfinite = np.isinf(norms)
        is_abnormal = is_nonfinite | (is_abnormal & (excess > ratio))
        return np.where(is_nonfinite, np.inf, excess), is_abnormal


def medians(table: np.ndarray) -> np.ndarray:
    """Median of each column, without NaN; NaN of one that has nothing else."""
    has = ~np.isnan(table).all(0)
    found = np.full(table.shape[1], np.nan)
    if has.any():
        of = np.nanmedian if np.isnan(table[:, has]).any() else np.median
        found[has] = of(table[:, has], 0)  # without NaN the latter is faster
    return found


@dataclasses.dataclass(frozen=True)
class Guilty:
    """A tensor that was abnormal in an event."""

    key: str
    onset: int
    """First step in which it was."""

    norm: float
    """In its worst step of the event; Inf if the gradient had Inf or NaN."""

    usual: float
    ratio: float
    worst_step: int


@dataclasses.dataclass(frozen=True)
class Finding:
    """What the norms of an event say."""

    guilty: Sequence[Guilty] = ()
    """By onset, then by norm over usual norm."""

    share: float = 0.0
    """Share of the tensors that were raised when the first one was."""

    is_known: bool = False
    """Whether the event's tensors, and enough before them, are recorded."""


def find_guilty(
    steps: np.ndarray,
    norms: np.ndarray,
    keys: Sequence[str],
    start: int,
    end: int,
) -> Finding:
    """Say which tensors began an event, of the steps ``start`` to ``end``.

    ``norms`` are ``[num_rows, num_tensors]`` before the clip; ``steps`` those
    of the rows, ascending. Rows before the event say what is usual.
    """
    past, near = steps < start, (steps >= start - _ONSET_STEPS) & (steps <= end)
    early = past & ~near
    inside = steps[near] >= start
    is_known = past.sum() >= _FIRST_JUDGED and inside.any()
    if not is_known and not np.isinf(norms[near][inside]).any():
        return Finding()
    # What is usual just before, and what was before a slow growth.
    measures = [Usual.of(norms[past][-_WINDOW:])]
    if early.sum() >= _FIRST_JUDGED:
        measures.append(Usual.of(norms[early][-_WINDOW:]))
    steps, norms = steps[near], norms[near]
    ratios, abnormal = zip(*(m.excess(norms) for m in measures), strict=True)
    ratio = np.fmax.reduce(ratios)
    usual = np.fmin.reduce([m.norm for m in measures])
    # Before the event the older measure counts alone, in two steps in a row.
    is_abnormal = np.any(abnormal, 0)
    is_abnormal[~inside] = abnormal[1][~inside] if len(measures) > 1 else False
    is_abnormal[:-1] &= is_abnormal[1:] | inside[:-1, None]
    guilty = []
    for i in np.flatnonzero(is_abnormal[inside].any(0)).tolist():
        rows = np.flatnonzero(is_abnormal[:, i])
        worst = rows[np.argmax(np.where(inside[rows], ratio[rows, i], 0))]
        # Up to ten calm steps may lie within a run of abnormal ones.
        gaps = np.flatnonzero(np.diff(steps[rows]) > EVENT_GAP)
        onset = int(steps[rows[gaps[-1] + 1 if len(gaps) else 0]])
        norm, times = float(norms[worst, i]), float(ratio[worst, i])
        worst_step = int(steps[worst])
        one = Guilty(keys[i], onset, norm, float(usual[i]), times, worst_step)
        guilty.append(one)
    guilty.sort(key=lambda g: (g.onset, -g.ratio))
    onset = guilty[0].onset if guilty else start
    share = _share(steps - onset, norms, measures[0])
    return Finding(guilty, share, is_known=True)


def _share(since: np.ndarray, norms: np.ndarray, usual: Usual) -> float:
    """Return the share of tensors that rose in the first two steps.

    In one step, if a tensor has Inf or NaN there: a step later all may have it.
    """
    has_inf = (since >= 0) & np.isinf(norms).any(1)
    at_once = (since >= 0) & (since <= min([1, *since[has_inf]]))
    is_raised = usual.excess(norms[at_once], _RAISED_SCORE, _RAISED_RATIO)[1]
    return float(is_raised.mean(1).max(initial=0.0)) if norms.size else 0.0


def layer_of(key: str) -> str:
    """Return a tensor's layer: its name up to the first number.

    ``layers.3.mlp.up.weight`` -> ``layers.3``; without a number what stands
    before the last dot.
    """
    parts = key.split(".")
    for i, part in enumerate(parts[:-1]):
        if i and part.isascii() and part.isdigit():
            return ".".join(parts[: i + 1])
    return key.rpartition(".")[0] or key
