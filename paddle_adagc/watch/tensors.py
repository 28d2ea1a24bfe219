# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tensors began an event. NumPy alone.

A tensor's usual norm is the median over steps just before. It is never compared
with other tensors: many always are clipped hard, and that says nothing.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np

from paddle_adagc.watch.judge import EVENT_GAP, NORMAL_CONSISTENCY

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
        known = (~np.isnan(logs)).sum(0) >= _FIRST_JUDGED
        middle = np.full(logs.shape[1], np.nan)
        spread = middle.copy()
        if known.any():
            found = logs[:, known]
            middle[known] = medians(found[-_NUM_MIDDLE:])
            half = len(found) // 2
            slope = (medians(found[half:]) - medians(found[:half])) / half
            left = found - np.nan_to_num(slope) * np.arange(len(found))[:, None]
            distance = np.abs(left - medians(left))
            spread[known] = NORMAL_CONSISTENCY * medians(distance)
        return cls(np.exp(middle), np.maximum(spread, _SMALLEST_DEVIATION))

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
        is_abnormal &= excess > ratio
        is_nonfinite = np.isinf(norms)
        excess = np.where(is_nonfinite, np.inf, excess)
        return excess, is_abnormal | is_nonfinite


def medians(table: np.ndarray) -> np.ndarray:
    """Median of each column, without NaN; NaN of one that has nothing else."""
    has = ~np.isnan(table).all(0)
    found = np.full(table.shape[1], np.nan)
    if has.any():
        of = np.nanmedian if np.isnan(table).any() else np.median  # faster
        found[has] = of(table[:, has], 0)
    return found


class RecentNorms:
    """Usual norms of a running training, measured once per call."""

    def __init__(self) -> None:
        self._rows = deque[np.ndarray](maxlen=_WINDOW)

    def largest_excess(self, norms: np.ndarray) -> np.ndarray:
        """Return, by step, the largest ratio of a tensor that is abnormal.

        1 if none is; ``norms`` are ``[num_steps, num_tensors]``, NaN where
        nothing is known. They enter the usual norms of later calls. A later
        call may have more tensors, at the end.
        """
        largest = np.ones(len(norms))
        if len(self._rows) >= _FIRST_JUDGED:
            num = norms.shape[1]
            rows = [
                np.pad(r, (0, num - len(r)), constant_values=np.nan)
                for r in self._rows
            ]
            ratio, is_abnormal = Usual.of(np.stack(rows)).excess(norms)
            is_abnormal &= ~np.isinf(norms)
            largest = np.where(is_abnormal, ratio, 1).max(1, initial=1)
        self._rows.extend(norms)
        return largest


@dataclasses.dataclass(frozen=True)
class Guilty:
    """A tensor that was abnormal in an event."""

    key: str
    layer: str
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

    guilty: list[Guilty]
    """By onset, then by norm over usual norm."""

    share: float
    """Share of the tensors that were raised when the first one was."""

    is_known: bool
    """Whether the event's tensors, and enough before them, are recorded."""


def find_guilty(
    steps: np.ndarray,
    norms: np.ndarray,
    keys: Sequence[str],
    start: int,
    end: int,
) -> Finding:
    """Say which tensors began an event, of the steps ``start`` to ``end``.

    Args:
        steps: Of the rows, ascending; those before the event say what is usual.
        norms: ``[num_rows, num_tensors]`` before the clip.
        keys: Names of the tensors.
        start: First step of the event.
        end: Last one.
    """
    before = np.flatnonzero(steps < start)
    early = before[steps[before] < start - _ONSET_STEPS]
    near = np.flatnonzero((steps >= start - _ONSET_STEPS) & (steps <= end))
    inside = steps[near] >= start
    if len(before) < _FIRST_JUDGED or not inside.any():
        nonfinite = np.flatnonzero(np.isinf(norms[near][inside]).any(0))
        if not len(nonfinite):
            return Finding([], 0.0, is_known=False)
    # What is usual just before, and what was before a slow growth.
    recent = Usual.of(norms[before[-_WINDOW:]])
    its_norms, its_steps = norms[near], steps[near]
    ratio, is_abnormal = recent.excess(its_norms)
    is_abnormal[~inside] = False
    usual_norm = recent.norm
    if len(early) >= _FIRST_JUDGED:
        usual = Usual.of(norms[early[-_WINDOW:]])
        its_ratio, was_abnormal = usual.excess(its_norms)
        is_abnormal |= was_abnormal
        ratio = np.fmax(ratio, its_ratio)
        usual_norm = np.fmin(usual_norm, usual.norm)
    lasts = np.zeros_like(is_abnormal)
    lasts[:-1] = is_abnormal[1:]
    is_abnormal &= lasts | inside[:, None]
    guilty = [
        _guilty(
            keys[i],
            its_steps,
            np.stack([its_norms[:, i], ratio[:, i]]),
            np.flatnonzero(is_abnormal[:, i]),
            inside,
            float(usual_norm[i]),
        )
        for i in np.flatnonzero(is_abnormal[inside].any(0))
    ]
    guilty.sort(key=lambda g: (g.onset, -g.ratio))
    onset = guilty[0].onset if guilty else start
    # Inf or NaN in one tensor may be in all of them a step later.
    has_inf = (its_steps >= onset) & np.isinf(its_norms).any(1)
    last = min([onset + 1, *its_steps[has_inf]])
    at_once = (its_steps >= onset) & (its_steps <= last)
    _, is_raised = recent.excess(
        its_norms[at_once], _RAISED_SCORE, _RAISED_RATIO
    )
    share = is_raised.mean(1).max(initial=0.0) if len(keys) else 0.0
    return Finding(guilty, float(share), is_known=True)


def _guilty(
    key: str,
    steps: np.ndarray,
    norm_and_ratio: np.ndarray,
    rows: np.ndarray,
    inside: np.ndarray,
    usual: float,
) -> Guilty:
    """Describe a tensor that is abnormal in ``rows``."""
    norm, ratio = norm_and_ratio
    inner = rows[inside[rows]]
    worst = inner[np.argmax(ratio[inner])]
    # Up to ten calm steps may lie within a run of abnormal ones.
    gaps = np.flatnonzero(np.diff(steps[rows]) > EVENT_GAP)
    first = rows[gaps[-1] + 1 if len(gaps) else 0]
    return Guilty(
        key=key,
        layer=layer_of(key),
        onset=int(steps[first]),
        norm=float(norm[worst]),
        usual=usual,
        ratio=float(ratio[worst]),
        worst_step=int(steps[worst]),
    )


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
