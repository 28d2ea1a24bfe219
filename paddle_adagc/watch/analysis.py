# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a running training's steps say: events, and the tensors farthest off.

NumPy alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddle_adagc.watch.judge import Event, Judge
from paddle_adagc.watch.measure import Steps
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.tensors import NUM_BEFORE, find_guilty

_NUM_JUDGED = 68 * 64  # steps of earlier sessions that are judged again
_NUM_NAMED = 3


class Analysis:
    """Judges each step by the ones before.

    Args:
        start: First step.
        past: What earlier sessions have recorded.
    """

    def __init__(self, start: int, past: RecordedRun | None = None) -> None:
        self.events: list[Event] = []
        self._judge, self._last = Judge(), start - 1
        self._nonfinite: int | None = None  # a step whose loss was seen
        self._keys: dict[str, int] = {}
        self._norms = deque[tuple[int, np.ndarray]](maxlen=NUM_BEFORE)
        if past is not None:
            rows = [row for row in past.rows if row["step"] < start]
            for row in rows[-_NUM_JUDGED:]:
                self._judge.add(row["step"], _numbers(row))
            places = np.flatnonzero(past.tensor_steps < start)[-NUM_BEFORE:]
            steps = past.tensor_steps[places].tolist()
            norms = past.tensors("norm", places)
            self._norms.extend(zip(steps, norms, strict=True))
            self._keys = {key: i for i, key in enumerate(past.keys)}

    def nonfinite(self, step: int, loss: float) -> str:
        """Return the line of a loss that was seen before its step is judged."""
        self._nonfinite = step
        return f"step {step}: loss {loss}"

    def add(self, steps: Steps) -> tuple[list[Event], list[tuple[str, str]]]:
        """Judge the next steps; return events, and lines with their kinds."""
        for key in steps.keys:
            self._keys.setdefault(key, len(self._keys))
        order = [self._keys[key] for key in steps.keys]
        events, lines = list[Event](), list[tuple[str, str]]()
        for i, row in enumerate(steps.rows):
            step = row["step"]
            if not np.isnan(steps.tensors["h"][i]).all():
                norm = np.full(len(self._keys), np.nan, np.float32)
                norm[order] = steps.tensors["norm"][i]
                self._norms.append((step, norm))
            if step <= self._last:
                continue
            self._last = step
            if found := self._judge.add(step, _numbers(row)):
                events += found
                lines += self._lines(found, step)
            if row.get("skipped"):
                text = f"step {step} was left out: {row['reason']}"
                lines.append(("skipped", text))
        self.events += events
        return events, lines

    def _lines(
        self, events: Sequence[Event], now: int
    ) -> list[tuple[str, str]]:
        """Return a line for each kind of a step's events."""
        texts: dict[str, list[str]] = {}
        for event in events:
            if event.kind == "nan" and event.step == self._nonfinite:
                continue
            mine = texts.setdefault(event.kind, [])
            where = f"step {event.step}: " if mine else ""
            mine.append(event.text.removeprefix(where))
        if "spike" in texts:
            first = min(e.step for e in events if e.kind == "spike")
            texts["spike"] += self._named(first, now)
        return [(kind, "; ".join(found)) for kind, found in texts.items()]

    def _named(self, first: int, last: int) -> list[str]:
        """Name the tensors that left their usual norms."""
        table = np.full((len(self._norms), len(self._keys)), np.nan)
        for row, (_, mine) in zip(table, self._norms, strict=True):
            row[: len(mine)] = mine
        steps = np.array([step for step, _ in self._norms], np.int64)
        found = find_guilty(steps, table, [*self._keys], first, last)
        return [
            f"{one.key} (Inf or NaN)"
            if np.isinf(one.norm)
            else f"{one.key} ({one.ratio:.3g} times its usual norm)"
            for one in found.guilty[:_NUM_NAMED]
        ]


def known(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is NaN, which stands for unknown; but not of the loss."""
    return {n: x for n, x in row.items() if n == "loss" or x == x}


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    found = known(row)
    return {n: x for n, x in found.items() if isinstance(x, (int, float))}
