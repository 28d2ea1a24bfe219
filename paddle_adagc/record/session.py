# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What rank 0 does with copied steps: measure, judge, write, report."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from paddle_adagc.record.files import (
    QUANTITIES,
    RECORD,
    RecordedRun,
    RecordWriter,
    read_record,
)
from paddle_adagc.record.judge import Finding, RecentNorms, find_guilty, who
from paddle_adagc.record.ring import Steps
from paddle_adagc.record.shadow import Factors
from paddle_adagc.stability.alarms import WATCHES, Alarm, Monitor, Watch
from paddle_adagc.stability.spike_score import EVENT_GAP

logger = logging.getLogger(__name__)

_NUM_REMEMBERED = 256  # steps of an earlier session that say what is usual
_NUM_NEAR = 64  # steps around an alarm whose tensors are kept whole
_NUM_WHOLE = 256  # first steps of an event that are kept whole
_NUM_LOGGED = 10_000
_STUCK_MEDIAN, _STUCK_STEPS = 0.5, 200
_PERMANENT = "median_clipped_steps"
_PERMANENT_LINE = (
    f"less than half of the median tensor's gradient was left in each of "
    f"{_STUCK_STEPS} steps: the threshold is too low for calm steps, too"
)
_DIGITS = 6

RECORD_WATCHES: Mapping[str, Watch] = {
    **{n: WATCHES[n] for n in ("loss", "global_grad_norm", "nonfinite")},
    "tensor_norm": Watch(limit=2.0),
    _PERMANENT: Watch(limit=_STUCK_STEPS - 1.0),
}
"""Series of a record that raise alarms. ``tensor_norm``: the largest norm over
its tensor's usual one; ``median_clipped_steps``: steps in a row in which the
clip that acts left less than half of the median tensor's gradient."""


class Session:
    """One process' part of a record.

    Args:
        directory: Folder of the record.
        start: Index of its first step; None: after the last recorded one.
        facts: JSON values about this process.
        max_bytes: Bound of the per-tensor numbers.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        start: int | None,
        facts: Mapping[str, Any],
        max_bytes: int,
    ) -> None:
        self._monitor = Monitor(RECORD_WATCHES)
        self._recent = RecentNorms()
        self._latest: Steps | None = None  # written last
        self._num_stuck = 0
        self._unlogged: list[dict[str, Any]] = []
        past = None
        if os.path.exists(os.path.join(directory, RECORD)):
            past = read_record(directory)
        if start is None:
            has_steps = past is not None and len(past.step)
            start = int(past.step[-1]) + 1 if past and has_steps else 0
        self.start = start
        self._writer = RecordWriter(directory, start, facts, max_bytes)
        self.number = self._writer.session
        if past is not None:
            self._remember(past)
        self._written = [*self._monitor.alarms]

    def _remember(self, past: RecordedRun) -> None:
        """Take what is usual from earlier sessions; nothing is reported."""
        is_before = np.flatnonzero(past.step < self.start)[-_NUM_REMEMBERED:]
        columns = {n: past.column(n)[is_before] for n in RECORD_WATCHES}
        for i, step in enumerate(past.step[is_before].tolist()):
            values = {n: float(c[i]) for n, c in columns.items()}
            self._monitor.update([(step, _known(values))])
        places = np.flatnonzero(past.tensor_steps < self.start)
        norms = past.tensors("norm", places[-_NUM_REMEMBERED:])
        self._recent.largest_excess(norms)

    def write(self, steps: Steps, factors: Factors | None) -> list[str]:
        """Measure, judge and write steps of the whole model.

        ``factors`` are those of the clip that acts; None: of the recorded one.

        Returns:
            A line for each alarm that began in these steps.
        """
        steps = self._in_columns(steps)
        self._add_numbers(steps, factors)
        begun = self._monitor.update(
            (row["step"], {n: row[n] for n in RECORD_WATCHES if n in row})
            for row in map(_known, steps.rows)
        )
        changed = [a for a in self._monitor.alarms if a not in self._written]
        self._written = [*self._monitor.alarms]
        near = self._write_tensors(steps, changed)
        self._writer.append_steps(map(_rounded, steps.rows))
        lines, values = self._describe(changed, begun, near)
        self._writer.append_alarms(values)
        self._latest = steps
        self._unlogged = [*self._unlogged, *steps.rows][-_NUM_LOGGED:]
        return lines

    def _in_columns(self, steps: Steps) -> Steps:
        """Bring the tensors into the order of the record."""
        index = self._writer.index(steps.keys)
        keys, tensors = self._writer.keys, {}
        for name, table in steps.tensors.items():
            shape = (len(steps.rows), len(keys))
            tensors[name] = np.full(shape, np.nan, np.float32)
            tensors[name][:, index] = table
        return Steps(steps.rows, [*keys], tensors)

    def _add_numbers(self, steps: Steps, factors: Factors | None) -> None:
        """Add the clip's numbers to each step that it has seen."""
        norm, h = steps.tensors["norm"], steps.tensors["h"]
        named: dict[str, np.ndarray | None] = {"": h}
        if factors is not None:
            acting = steps.tensors.get("acting_h")
            named = {"": factors(norm) if acting is None else acting}
            named["shadow_"] = h
        is_seen = ~np.isnan(h).all(1)
        finite = np.isfinite(norm) & (norm > 0)
        norm = np.where(finite | np.isinf(norm), norm, 0)
        mine = np.where(finite, norm, 0).astype(np.float64)
        columns: dict[str, np.ndarray] = {
            "global_grad_norm": np.sqrt(np.sum(mine**2, 1)),
            "nonfinite": np.sum(np.isinf(norm), 1),
            "tensor_norm": self._recent.largest_excess(norm),
        }
        for prefix, table in named.items():
            if table is not None:
                numbers = _of_factors(mine, table, finite)
                columns |= {prefix + k: x for k, x in numbers.items()}
        values = {name: column.tolist() for name, column in columns.items()}
        for i in np.flatnonzero(is_seen):
            row = steps.rows[i]
            row |= {name: column[i] for name, column in values.items()}
            is_low = row.get("h_median", 1.0) < _STUCK_MEDIAN
            self._num_stuck = self._num_stuck + 1 if is_low else 0
            row["median_clipped_steps"] = self._num_stuck

    def _write_tensors(
        self, steps: Steps, changed: Sequence[Alarm]
    ) -> list[Steps]:
        """Write rows: all, or some away from alarms.

        Returns the rows in memory, those of the ring before first.
        """
        rings = [ring for ring in (self._latest, steps) if ring is not None]
        for ring in rings:
            numbers = np.array([row["step"] for row in ring.rows])
            is_seen = ~np.isnan(ring.tensors["h"]).all(1)
            is_near = np.zeros(len(numbers), bool)
            for alarm in changed:
                if alarm.series == _PERMANENT:
                    continue
                last = min(alarm.end, alarm.start + _NUM_WHOLE) + _NUM_NEAR
                after = numbers >= alarm.start - _NUM_NEAR
                is_near |= after & (numbers <= last)
            is_due = (numbers % self._writer.every == 0) & (ring is steps)
            for keep, chosen in ((True, is_near), (False, is_due & ~is_near)):
                places = np.flatnonzero(chosen & is_seen)
                tensors = {n: ring.tensors[n][places] for n in QUANTITIES}
                tensors = {n: _wide(t, steps) for n, t in tensors.items()}
                mine = numbers[places].tolist()
                self._writer.append_tensors(mine, tensors, keep=keep)
        return rings

    def _describe(
        self,
        changed: Sequence[Alarm],
        begun: Sequence[Alarm],
        rings: Sequence[Steps],
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """Return a line for each event that begins, and alarms as JSON."""
        numbers = [row["step"] for ring in rings for row in ring.rows]
        norms = np.concatenate(
            [_wide(ring.tensors["norm"], rings[-1]) for ring in rings]
        )

        @functools.cache
        def find(start: int, end: int) -> Finding:
            return find_guilty(numbers, norms, rings[-1].keys, start, end)

        values = []
        for alarm in changed:
            finding = Finding("none", 0.0, [])
            if alarm.series != _PERMANENT:
                finding = find(alarm.start, alarm.end)
            guilty = [g.key for g in finding.guilty[:3]]
            value = {**dataclasses.asdict(alarm), "guilty": guilty}
            values.append({**value, "kind": finding.kind})
        lines = [_PERMANENT_LINE] * any(a.series == _PERMANENT for a in begun)
        spiky = [alarm for alarm in begun if alarm.series != _PERMANENT]
        spans = [(alarm.start, alarm.end) for alarm in spiky]
        for start, end in merged(spans):
            mine = [_text(a) for a in spiky if start <= a.start <= end]
            where = f"step {start}" + (f" to {end}" if end > start else "")
            names = who(find(start, end))
            lines.append(
                f"{where}: {', '.join(mine)}" + (f"; {names}" if names else "")
            )
        return lines, values

    def worst(self) -> dict[str, Any]:
        """Return the worst of the steps written since the last call."""
        rows, self._unlogged = self._unlogged, []
        found: dict[str, Any] = {}
        for name, choose, label in (
            ("h_min", min, "h_min_worst"),
            ("shadow_h_min", min, "shadow_h_min_worst"),
            ("global_grad_norm", max, "global_grad_norm_max"),
        ):
            known = [_known(row) for row in rows]
            known = [row for row in known if name in row]
            if known:
                row = choose(known, key=lambda r, n=name: r[n])  # type: ignore
                found |= {label: row[name], f"{label}_step": row["step"]}
        return found

    def latest(self) -> dict[str, Any]:
        """Return the numbers of the last step written."""
        return _known(self._latest.rows[-1]) if self._latest else {}

    def close(self) -> None:
        """Let other processes write to the record."""
        self._writer.close()


def _of_factors(
    norm: np.ndarray, h: np.ndarray, known: np.ndarray
) -> dict[str, np.ndarray]:
    """Return numbers of each step, ``[num_steps]``, from what is known."""
    count = known.sum(1)
    ascending = np.sort(np.where(known, h, np.inf), 1)
    rows, middle = np.arange(len(h)), np.maximum(count, 1)
    low, high = (middle - 1) // 2, middle // 2
    median = np.full(len(h), np.nan)
    if h.shape[1]:
        median = (ascending[rows, low] + ascending[rows, high]) / 2
    nothing = count == 0
    return {
        name: np.where(nothing, np.nan, numbers)
        for name, numbers in {
            "clipped_grad_norm": np.sqrt(
                np.sum((np.where(known, h, 0) * norm) ** 2, 1)
            ),
            "clipped_fraction": ((h < 1) & known).sum(1) / middle,
            "h_min": ascending.min(1, initial=np.inf),
            "h_median": median,
        }.items()
    }


def _wide(table: np.ndarray, steps: Steps) -> np.ndarray:
    """Add columns for tensors that were not known then."""
    missing = len(steps.keys) - table.shape[1]
    return np.pad(table, ((0, 0), (0, missing)), constant_values=np.nan)


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is unknown; an Inf stays."""
    return {
        name: value
        for name, value in row.items()
        if not (isinstance(value, float) and math.isnan(value))
    }


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: float(f"{value:.{_DIGITS}g}")
        if isinstance(value, float)
        else value
        for name, value in _known(row).items()
    }


def _text(alarm: Alarm) -> str:
    if alarm.series == "nonfinite":
        return f"{alarm.worst:.0f} tensors with Inf or NaN"
    if alarm.series == "tensor_norm":
        return f"a tensor at {alarm.worst:.3g} times its usual norm"
    return f"{alarm.series} {alarm.worst:.4g} (usual {alarm.usual:.4g})"


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge events of several series that lie close to each other."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= EVENT_GAP:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
