# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What rank 0 does with copied steps: measure, judge, write, report."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddle_adagc.record.blocks import QUANTITIES
from paddle_adagc.record.files import RECORD, RecordedRun, read_record
from paddle_adagc.record.judge import (
    SPIKES,
    Finding,
    RecentNorms,
    cause_of,
    find_guilty,
    is_quiet,
    merged,
    widened,
)
from paddle_adagc.record.ring import Steps
from paddle_adagc.record.shadow import Factors
from paddle_adagc.record.words import note, spike_text, who
from paddle_adagc.record.writer import RecordWriter
from paddle_adagc.stability.alarms import WATCHES, Alarm, Monitor

_NUM_REMEMBERED = 512  # rows of tensors of earlier sessions
_NUM_JUDGED = 68 * 64  # their steps that alarms look back to: see Masking
_NUM_NEAR = 64  # steps around an alarm whose tensors are kept whole
_NUM_WHOLE = 256  # first steps of an event that are kept whole
_NUM_IN_MEMORY = 256
_NUM_LOGGED = 10_000
_MASKED_RISE = 2.0  # of the norm, in which permanent clipping is masking
STUCK_H, STUCK_STEPS = 0.01, 200  # a lower h in so many steps
_JUDGED = ("loss", "global_grad_norm")  # by which steps are skipped
_DIGITS = 6


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
        self._monitor = Monitor()
        self._recent = RecentNorms()
        self._rings: list[Steps] = []
        """The steps written last, 256 or more: copies may be of a few each."""
        self._earlier: tuple[list[int], np.ndarray] = [], np.zeros((0, 0), "f4")
        """Steps before this session, and norms of their tensors."""
        self._kept: set[int] = set()
        """Those of them whose tensors were written whole."""
        self._num_low = np.zeros(0, np.int64)
        """Last steps in a row in which a tensor's h was below 0.01."""
        self._unlogged: list[dict[str, Any]] = []
        self._num_begun = 0  # alarms since the last call of worst()
        self.history: list[tuple[int, dict[str, float]]] = []
        """Loss and global norm of the last steps before this session."""
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
        self._written = {*self._monitor.alarms}

    def _remember(self, past: RecordedRun) -> None:
        """Take what is usual from earlier sessions; nothing is reported."""
        rows = [row for row in past.rows if row["step"] < self.start]
        watched = [*map(_watched, rows[-_NUM_JUDGED:])]
        self._monitor.update(watched)
        self.history = [
            (step, {n: x for n, x in values.items() if n in _JUDGED})
            for step, values in watched[-_NUM_REMEMBERED:]
        ]
        names = [field.name for field in dataclasses.fields(Alarm)]
        alarms = [
            {**{n: a[n] for n in names}, "end": min(a["end"], self.start - 1)}
            for a in past.alarms
            if a["start"] < self.start
        ]
        state = self._monitor.state_dict()
        self._monitor.set_state_dict({**state, "alarms": alarms})
        places = np.flatnonzero(past.tensor_steps < self.start)
        places = places[-_NUM_REMEMBERED:]
        # Others have tensors that only another rank's part knows so far.
        norms = past.tensors("norm", places)[:, : len(self._writer.keys)]
        self._earlier = past.tensor_steps[places].tolist(), norms
        self._recent.largest_excess(norms)
        if not past.sessions[-1].get("shadow"):
            h = past.tensors("h", places)[:, : len(self._writer.keys)]
            skipped = past.step[past.column("skipped") == 1]
            is_made = ~np.isin(self._earlier[0], skipped)
            is_low = (h < STUCK_H) & np.isfinite(norms) & (norms > 0)
            num_rows = is_low[is_made][::-1].cumprod(0).sum(0)
            steps = np.append(np.array(self._earlier[0])[is_made], self.start)
            self._num_low = self.start - steps[len(steps) - 1 - num_rows]

    def begin(self, start: int, facts: Mapping[str, Any]) -> None:
        """Begin a session of the same process: another clip acts."""
        self._writer.begin(start, facts)

    @property
    def alarms(self) -> list[Alarm]:
        """All events of the run so far, earlier sessions included."""
        return [*self._monitor.alarms]

    def write(
        self, steps: Steps, factors: Factors | None, *, is_part: bool = False
    ) -> list[str]:
        """Measure, judge and write steps of the whole model.

        ``factors`` are those of the clip that acts; None: of the recorded one.
        With ``is_part`` other ranks have more tensors: the model's numbers are
        then unknown.

        Returns:
            A line for each event that began in these steps.
        """
        steps = self._in_columns(steps)
        self._add_numbers(steps, factors, is_part)
        begun = self._monitor.update(map(_watched, steps.rows))
        alarms = self._monitor.alarms
        changed = [alarm for alarm in alarms if alarm not in self._written]
        self._written = {*alarms}
        self._rings = _last([*self._rings, steps])
        self._write_tensors(steps, changed)
        self._writer.append_steps(map(_rounded, steps.rows))
        lines, values = self._describe(changed, begun)
        self._writer.append_alarms(values)
        self._unlogged = [*self._unlogged, *steps.rows][-_NUM_LOGGED:]
        self._num_begun += len(lines)
        return lines

    def _in_columns(self, steps: Steps) -> Steps:
        """Bring the tensors into the order of the record."""
        index = self._writer.index(steps.keys)
        keys, tensors = self._writer.keys, {}
        for name, table in steps.tensors.items():
            shape = (len(steps.rows), len(keys))
            tensors[name] = np.full(shape, np.nan, np.float32)
            tensors[name][:, index] = table
        return Steps(steps.rows, [*keys], tensors, steps.num_small)

    def _add_numbers(
        self, steps: Steps, factors: Factors | None, is_part: bool
    ) -> None:
        """Add the clip's numbers to each step that it has seen."""
        norm, h = steps.tensors["norm"], steps.tensors["h"]
        named: dict[str, np.ndarray | None] = {"": h}
        if factors is not None:
            acting = steps.tensors.get("acting_h")
            named = {
                "": factors(norm, steps.keys) if acting is None else acting
            }
            named["shadow_"] = h
        is_seen = ~np.isnan(h).all(1)
        is_skipped = np.array([row.get("skipped", False) for row in steps.rows])
        h[is_skipped], steps.tensors["gamma"][is_skipped] = 0, np.nan
        finite = np.isfinite(norm) & (norm > 0)
        norm = np.where(finite | np.isinf(norm), norm, 0)
        mine = np.where(finite, norm, 0).astype(np.float64)
        columns: dict[str, np.ndarray] = {
            "nonfinite": np.sum(np.isinf(norm), 1),
            "tensor_norm": self._recent.largest_excess(norm),
        }
        if is_part:
            named = {}
        else:
            columns["global_grad_norm"] = np.sqrt(np.sum(mine**2, 1))
        for prefix, table in named.items():
            if table is not None:
                table = np.where(is_skipped[:, None], 0, table)
                numbers = _of_factors(mine, table, finite)
                columns |= {prefix + k: x for k, x in numbers.items()}
        values = {name: column.tolist() for name, column in columns.items()}
        for i in np.flatnonzero(is_seen):
            row = steps.rows[i]
            row |= {name: column[i] for name, column in values.items()}
            if factors is None and not row.get("skipped"):
                row["stuck"] = self._newly_stuck(h[i], finite[i])
        small, every = steps.num_small
        if every:
            steps.rows[-1]["small_second_moment"] = small / every

    def _newly_stuck(self, h: np.ndarray, known: np.ndarray) -> int:
        """Count tensors below h 0.01 for 200 steps since this one."""
        before = self._num_low
        self._num_low = np.zeros(len(h), np.int64)
        self._num_low[: len(before)] = before
        low = (h < STUCK_H) & known
        self._num_low = np.where(low, self._num_low + 1, 0)
        return int(np.sum(self._num_low == STUCK_STEPS))

    def _write_tensors(self, steps: Steps, changed: Sequence[Alarm]) -> None:
        """Write rows: all, or some away from alarms."""
        for ring in self._rings:
            numbers = np.array([row["step"] for row in ring.rows])
            is_seen = ~np.isnan(ring.tensors["h"]).all(1)
            is_near = np.zeros(len(numbers), bool)
            for alarm in changed:
                if alarm.series not in SPIKES:
                    continue
                last = min(alarm.end, alarm.start + _NUM_WHOLE) + _NUM_NEAR
                after = numbers >= alarm.start - _NUM_NEAR
                is_near |= after & (numbers <= last)
            is_near &= ~np.isin(numbers, [*self._kept])
            is_due = (numbers % self._writer.every == 0) & (ring is steps)
            for keep, chosen in ((True, is_near), (False, is_due & ~is_near)):
                places = np.flatnonzero(chosen & is_seen)
                tensors = {n: ring.tensors[n][places] for n in QUANTITIES}
                tensors = {
                    n: widened(t, len(steps.keys)) for n, t in tensors.items()
                }
                mine = numbers[places].tolist()
                self._writer.append_tensors(mine, tensors, keep=keep)
            self._kept.update(numbers[is_near].tolist())
        first = self._rings[0].rows[0]["step"]
        self._kept = {step for step in self._kept if step >= first}

    def _describe(
        self, changed: Sequence[Alarm], begun: Sequence[Alarm]
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """Return a line for each event that begins, and alarms as JSON."""
        rings, (numbers, earlier) = self._rings, self._earlier
        numbers = numbers + [row["step"] for ring in rings for row in ring.rows]
        tables = [earlier, *(ring.tensors["norm"] for ring in rings)]
        norms = np.concatenate(
            [widened(t, len(rings[-1].keys)) for t in tables]
        )

        @functools.cache
        def find(start: int, end: int) -> Finding:
            return find_guilty(numbers, norms, rings[-1].keys, start, end)

        values, lines = [], []
        for alarm in changed:
            value = {**dataclasses.asdict(alarm), "guilty": []}
            if alarm.series in SPIKES:
                finding = find(alarm.start, alarm.end)
                value["guilty"] = [g.key for g in finding.guilty[:3]]
                value["kind"] = cause_of(finding.kind, [alarm.series])
            else:
                value |= self._about_state(alarm)
                lines += [note(value)] if alarm in begun else []
            values.append(value)
        rows = [row for ring in rings for row in ring.rows]
        loss = {row["step"]: row.get("loss") for row in rows}
        skipped = [row["step"] for row in rows if row.get("skipped")]
        spiky = [alarm for alarm in begun if alarm.series in SPIKES]
        spans = [(alarm.start, alarm.end) for alarm in spiky]
        for start, end in merged(spans):
            mine = [a for a in spiky if start <= a.start <= end]
            finding, series = find(start, end), {a.series for a in mine}
            ratios = [g.ratio for g in finding.guilty]
            if is_quiet(series, ratios) or not cause_of(finding.kind, series):
                continue
            where = f"step {start}" + (f" to {end}" if end > start else "")
            names = who(finding)
            texts = [
                spike_text(a, loss.get(a.worst_step), finding) for a in mine
            ]
            parts = [f"{where}: {', '.join(texts)}", names]
            if num_skipped := sum(start <= step <= end for step in skipped):
                parts.append(f"{num_skipped} left out")
            lines.append("; ".join(filter(None, parts)))
        return lines, values

    def _about_state(self, alarm: Alarm) -> dict[str, Any]:
        """Return what an alarm that is no spike has besides."""
        if alarm.series != "h_median":
            return {"kind": alarm.series}
        names = ("clipped_fraction", "h_median")
        rows = [
            row
            for ring in self._rings
            for row in ring.rows
            if alarm.start <= row["step"] <= alarm.end
            and names[0] in row
            and not row.get("skipped")
        ]
        # A step whose gradients are all Inf or NaN has neither.
        medians = {n: float(np.nanmedian([r[n] for r in rows])) for n in names}
        rises = self._monitor.rise > _MASKED_RISE
        return {**medians, "kind": "masked" if rises else "too low"}

    def worst(self) -> dict[str, Any]:
        """Return the worst of the steps written since the last call."""
        rows, self._unlogged = [*map(_known, self._unlogged)], []
        found: dict[str, Any] = {"alarms": self._num_begun}
        self._num_begun = 0
        for name, choose, label in (
            ("h_min", min, "h_min_worst"),
            ("shadow_h_min", min, "shadow_h_min_worst"),
            ("global_grad_norm", max, "global_grad_norm_max"),
        ):
            known = [row for row in rows if name in row]
            if known:
                row = choose(known, key=lambda r, n=name: r[n])  # type: ignore
                found |= {label: row[name], f"{label}_step": row["step"]}
        return found

    def latest(self) -> dict[str, Any]:
        """Return the numbers of the last step written."""
        return _known(self._rings[-1].rows[-1]) if self._rings else {}

    def close(self) -> None:
        """Let other processes write to the record."""
        self._writer.close()


def _last(rings: list[Steps]) -> list[Steps]:
    """Leave out the first rings, as long as enough steps stay."""
    while sum(len(ring.rows) for ring in rings[1:]) >= _NUM_IN_MEMORY:
        rings = rings[1:]
    return rings


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


def _watched(row: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return a row's step and what a :class:`Monitor` judges of it."""
    names = {*WATCHES, "warm_up"}
    known = {n: x for n, x in _known(row).items() if n in names}
    return row["step"], known


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is NaN, which stands for unknown; but not of the loss."""
    return {
        name: value
        for name, value in row.items()
        if name == "loss" or value == value
    }


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: float(f"{value:.{_DIGITS}g}")
        if isinstance(value, float)
        else value
        for name, value in _known(row).items()
    }
