# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is abnormal in recorded norms, and which tensors began it.

A tensor's usual norm is the median over steps just before. It is never compared
with other tensors: many always are clipped hard, and that says nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from paddle_adagc.spikes import EVENT_GAP
from paddle_adagc.stability.alarms import NORMAL_CONSISTENCY

_WINDOW = 128
_FIRST_JUDGED = 32
_SMALLEST_DEVIATION = 0.02  # of log norms: 2%
SCORE = 8.0
"""A norm is abnormal above so many deviations, in logarithms, ..."""

RATIO = 1.5
"""... and above this times its usual norm."""

_RAISED_SCORE, _RAISED_RATIO, _BATCH_SHARE = 2.0, 1.3, 0.5
"""An event is one of the batch if half of the tensors are raised at once.

A ruined batch raises all of them, but unequally: few may be abnormal. In a calm
step few are above two deviations.
"""

_ONSET_STEPS = 64
"""How far before the event a tensor may have begun."""

SPIKES = ("loss", "global_grad_norm", "nonfinite", "tensor_norm")
"""Series whose alarms are events of some steps, with guilty tensors; those of
the others are about a state of the run."""

_LOUD = 100.0  # times its usual norm: no batch of a calm run does so

_LAYER = re.compile(r"^(.*?\.\d+)(?=\.)")


@dataclasses.dataclass(frozen=True)
class Usual:
    """Usual norms of tensors, each ``[num_tensors]``; NaN where unknown."""

    norm: np.ndarray
    deviation: np.ndarray
    """Standard deviation of the norm's logarithm, from the median one."""

    @classmethod
    def of(cls, norms: np.ndarray) -> Usual:
        """Measure norms ``[num_steps, num_tensors]``; 0, Inf, NaN are none.

        The usual norm is the median of the last 32 rows. The deviation is
        about a straight line through the logarithms, since norms fall or rise
        as training goes on.
        """
        with np.errstate(all="ignore"):
            logs = np.log(norms.astype(np.float64))
        logs[~np.isfinite(logs)] = np.nan
        known = (~np.isnan(logs)).sum(0) >= _FIRST_JUDGED
        middle = np.full(logs.shape[1], np.nan)
        spread = middle.copy()
        if known.any():
            found = logs[:, known]
            middle[known] = medians(found[-_FIRST_JUDGED:])
            half = len(found) // 2
            slope = (medians(found[half:]) - medians(found[:half])) / half
            line = np.nan_to_num(slope) * np.arange(len(found))[:, None]
            left = found - line
            distance = np.abs(left - medians(left))
            spread[known] = NORMAL_CONSISTENCY * medians(distance)
        return cls(np.exp(middle), np.maximum(spread, _SMALLEST_DEVIATION))

    def excess(
        self, norms: np.ndarray, score: float = SCORE, ratio: float = RATIO
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
    """Usual norms of a running training, measured once per ring."""

    def __init__(self) -> None:
        self._rows = deque[np.ndarray](maxlen=_WINDOW)
        self._length = 0

    def largest_excess(self, norms: np.ndarray) -> np.ndarray:
        """Return, by step, the largest ratio of a tensor that is abnormal.

        1 if none is; ``norms`` are ``[num_steps, num_tensors]``, NaN where
        nothing is known. They enter the usual norms of later rings.
        """
        self._length = max(self._length, norms.shape[1])
        largest = np.ones(len(norms))
        if len(self._rows) >= _FIRST_JUDGED:
            rows = [widened(row, self._length) for row in self._rows]
            usual = Usual.of(np.stack(rows))
            ratio, is_abnormal = usual.excess(norms)
            is_abnormal &= ~np.isinf(norms)
            largest = np.where(is_abnormal, ratio, 1).max(1, initial=1)
        self._rows.extend(norms)
        return largest


def widened(norms: np.ndarray, num_tensors: int) -> np.ndarray:
    """Add columns of NaN for tensors that were not known then."""
    missing = num_tensors - norms.shape[-1]
    before = [(0, 0)] * (norms.ndim - 1)
    return np.pad(norms, [*before, (0, missing)], constant_values=np.nan)


@dataclasses.dataclass(frozen=True)
class Guilty:
    """A tensor that was abnormal in an event."""

    key: str
    layer: str
    onset: int
    """First step in which it was."""

    norm: float
    """In its worst step of the event."""

    usual: float
    ratio: float
    worst_step: int


@dataclasses.dataclass(frozen=True)
class Finding:
    """What an event's norms say of its cause."""

    kind: str
    """``"batch"``: most tensors at once; ``"nonfinite"``: Inf or NaN;
    ``"layer"``, ``"tensor"``: those of one alone; ``"several"``; ``"none"``:
    no tensor was abnormal, see :func:`cause_of`."""

    share: float
    """Share of the tensors that were raised in the first step or the next."""

    guilty: list[Guilty]
    """By onset, then by norm over usual norm."""


def find_guilty(
    steps: Sequence[int] | np.ndarray,
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
    steps = np.asarray(steps)
    before = np.flatnonzero(steps < start)
    early = before[steps[before] < start - _ONSET_STEPS]
    near = np.flatnonzero((steps >= start - _ONSET_STEPS) & (steps <= end))
    # What is usual just before, and what was before a slow growth.
    recent = Usual.of(norms[before[-_WINDOW:]])
    its_norms, its_steps = norms[near], steps[near]
    ratio, is_abnormal = recent.excess(its_norms)
    is_abnormal[its_steps < start] = False
    usual_norm = recent.norm
    if len(early) >= _FIRST_JUDGED:
        usual = Usual.of(norms[early[-_WINDOW:]])
        its_ratio, was_abnormal = usual.excess(its_norms)
        is_abnormal |= was_abnormal
        ratio = np.fmax(ratio, its_ratio)
        usual_norm = np.fmin(usual_norm, usual.norm)
    is_abnormal &= _lasts(is_abnormal) | (its_steps >= start)[:, None]
    inside = its_steps >= start
    guilty = []
    for i in np.flatnonzero(is_abnormal[inside].any(0)):
        rows = np.flatnonzero(is_abnormal[:, i])
        inner = rows[inside[rows]]
        worst = inner[np.argmax(ratio[inner, i])]
        guilty.append(
            Guilty(
                key=keys[i],
                layer=layer_of(keys[i]),
                onset=int(its_steps[_first_of_run(rows, its_steps)]),
                norm=float(its_norms[worst, i]),
                usual=float(usual_norm[i]),
                ratio=float(ratio[worst, i]),
                worst_step=int(its_steps[worst]),
            )
        )
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
    return Finding(_kind(guilty, share), float(share), guilty)


def _first_of_run(rows: np.ndarray, steps: np.ndarray) -> int:
    """Return the row where the last run of abnormal steps began.

    Up to ten calm steps may lie within a run.
    """
    gaps = np.flatnonzero(np.diff(steps[rows]) > EVENT_GAP)
    return int(rows[gaps[-1] + 1 if len(gaps) else 0])


def _lasts(is_abnormal: np.ndarray) -> np.ndarray:
    """Whether the next row is abnormal, too."""
    later = np.zeros_like(is_abnormal)
    later[:-1] = is_abnormal[1:]
    return later


def _kind(guilty: Sequence[Guilty], share: float) -> str:
    if share >= _BATCH_SHARE:
        return "batch"
    if any(np.isinf(g.ratio) for g in guilty):
        return "nonfinite"
    if not guilty:
        return "none"
    if len(guilty) == 1:
        return "tensor"
    return "layer" if len({g.layer for g in guilty}) == 1 else "several"


def cause_of(kind: str, series: Iterable[str]) -> str:
    """Return the cause of an event of some series; "" if it is none.

    Without an abnormal tensor it is the first of ``"nonfinite"``, ``"loss"``
    and ``"norm"`` whose series rose.
    """
    words = {"nonfinite": "nonfinite", "loss": "loss"}
    words["global_grad_norm"] = "norm"
    found = [word for name, word in words.items() if name in {*series}]
    return kind if kind != "none" else "".join(found[:1])


def is_quiet(series: Iterable[str], ratios: Iterable[float]) -> bool:
    """Tell whether some tensors left their usual norms, and nothing else rose.

    Unusual batches of a calm run do so. A tensor far above its usual norm is no
    quiet event, even alone.

    Args:
        series: Of the event's alarms.
        ratios: Of its tensors: norm over usual norm.
    """
    return {*series} == {"tensor_norm"} and max(ratios, default=0) < _LOUD


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge events of several series that lie close to each other."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= EVENT_GAP:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def layer_of(key: str) -> str:
    """Return a tensor's layer: its name up to the first number.

    ``layers.3.mlp.up.weight`` -> ``layers.3``; without a number what stands
    before the last dot.
    """
    found = _LAYER.match(key)
    return found[1] if found else key.rpartition(".")[0] or key
