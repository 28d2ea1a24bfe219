# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a running training's steps say: events, and the tensors farthest off.

NumPy alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paddle_adagc.watch.judge import Judge
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.tensors import Usual

if TYPE_CHECKING:
    from paddle_adagc.watch.ring import Steps

_NUM_JUDGED = 68 * 64  # steps of earlier sessions that are judged again
_WINDOW = 128  # steps whose norms are usual
_NUM_NAMED = 3
STUCK_H, STUCK_STEPS = 0.01, 200
"""A tensor with a lower h in so many steps is stuck."""


class Analysis:
    """Judges each step by the ones before.

    Args:
        start: First step.
        past: What earlier sessions have recorded.
    """

    def __init__(self, start: int, past: RecordedRun | None) -> None:
        self.events: list[Any] = []
        self._judge, self._last = Judge(), start - 1
        self._nonfinite: int | None = None  # a step whose loss was seen
        self._keys: dict[str, int] = {}
        self._norms = deque[np.ndarray](maxlen=_WINDOW)
        self._num_low = np.zeros(0, np.int64)  # steps in a row, by tensor
        if past is not None:
            rows = [row for row in past.rows if row["step"] < start]
            for row in rows[-_NUM_JUDGED:]:
                self._judge.add(row["step"], _numbers(row))
            places = np.flatnonzero(past.tensor_steps < start)[-_WINDOW:]
            self._norms.extend(past.tensors("norm", places))
            self._keys = {key: i for i, key in enumerate(past.keys)}

    def nonfinite(self, step: int, loss: float) -> str:
        """Return the line of a loss that was seen before its step is judged."""
        self._nonfinite = step
        return f"step {step}: loss {loss}"

    def add(
        self, steps: Steps, is_ours: bool
    ) -> tuple[list[Any], list[tuple[str, str]]]:
        """Judge the next steps, to whose rows ``tensor_norm`` is added.

        ``tensor_norm`` is the largest ratio of an abnormal norm to its usual
        one, 1 if none is. Where a clip of this package acts (``is_ours``),
        ``stuck`` counts tensors newly below h 0.01 for 200 steps.

        Returns:
            Events, and lines with their kinds.
        """
        norm, h = self._widened(steps, "norm"), self._widened(steps, "h")
        ratio = self._ratios(norm)
        largest = np.where(np.isinf(ratio), 1, ratio).max(1, initial=1)
        events, lines, keys = [], [], [*self._keys]
        for i, row in enumerate(steps.rows):
            if not np.isnan(h[i]).all():
                row["tensor_norm"] = float(largest[i])
                if is_ours and not row.get("skipped"):
                    row["stuck"] = self._newly_stuck(h[i], norm[i])
            if row["step"] <= self._last:
                continue
            self._last = row["step"]
            found = self._judge.add(row["step"], _numbers(row))
            events += found
            is_known = row["step"] == self._nonfinite
            lines += _lines(found, _named(keys, ratio[i]), is_known)
            if row.get("skipped"):
                text = f"step {row['step']} was left out: {row['reason']}"
                lines.append(("skipped", text))
        self.events += events
        return events, lines

    def _widened(self, steps: Steps, name: str) -> np.ndarray:
        """Return a table with a column for each tensor known so far."""
        for key in steps.keys:
            self._keys.setdefault(key, len(self._keys))
        shape = len(steps.rows), len(self._keys)
        table = np.full(shape, np.nan, np.float32)
        table[:, [self._keys[key] for key in steps.keys]] = steps.tensors[name]
        return table

    def _ratios(self, norm: np.ndarray) -> np.ndarray:
        """Return norm over usual where that is abnormal; 1 elsewhere."""
        past = np.full((len(self._norms), norm.shape[1]), np.nan)
        for row, mine in zip(past, self._norms, strict=True):
            row[: len(mine)] = mine
        ratio, is_abnormal = Usual.of(past).excess(norm)
        self._norms.extend(norm)
        return np.where(is_abnormal, ratio, 1.0)

    def _newly_stuck(self, h: np.ndarray, norm: np.ndarray) -> int:
        before = np.pad(self._num_low, (0, len(h) - len(self._num_low)))
        is_low = (h < STUCK_H) & np.isfinite(norm) & (norm > 0)
        self._num_low = np.where(is_low, before + 1, 0)
        return int(np.sum(self._num_low == STUCK_STEPS))


def known(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is NaN, which stands for unknown; but not of the loss."""
    return {n: x for n, x in row.items() if n == "loss" or x == x}


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    found = known(row)
    return {n: x for n, x in found.items() if isinstance(x, (int, float))}


def _named(keys: Sequence[str], ratio: np.ndarray) -> list[str]:
    """Name the tensors that are farthest from what is usual."""
    order = np.argsort(-ratio, kind="stable")[:_NUM_NAMED]
    return [
        f"{keys[i]} (Inf or NaN)"
        if np.isinf(ratio[i])
        else f"{keys[i]} ({ratio[i]:.3g} times its usual norm)"
        for i in order.tolist()
        if ratio[i] > 1
    ]


def _lines(
    events: Sequence[Any], tensors: Sequence[str], is_known: bool
) -> list[tuple[str, str]]:
    """Return a line for each kind of a step's events."""
    texts: dict[str, list[str]] = {}
    for event in events:
        kind = event.kind
        if kind == "state":
            kind = event.series
        elif kind == "end" and is_known:
            continue
        mine = texts.setdefault(kind, [])
        where = f"step {event.step}: " if mine else ""
        mine.append(event.text.removeprefix(where))
    if "spike" in texts:
        texts["spike"] += tensors
        if "end" in texts:
            texts["end"] += texts.pop("spike")
    return [(kind, "; ".join(found)) for kind, found in texts.items()]
