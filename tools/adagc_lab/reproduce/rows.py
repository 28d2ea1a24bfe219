# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC beside GlobalGC on every experiment that has both: gain and price.

Nobody chooses the rows. An experiment has one wherever AdaGC with the paper's
values, or with another start of gamma, and GlobalGC with the same
``lambda_abs``, or with 0.1, make :data:`.statistics.MIN_SEEDS` pairs of one
length and differ in nothing but the clip. Each stands in the table of its
situation: with faults, set up to spike (the same few sequences again and
again), or calm. Lengths are not pooled: in a longer run the sign of a price may
change.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from adagc_lab.reproduce.pairs import (
    MASS,
    PRICE,
    Pair,
    by_length,
    change_of,
    differences_of,
    log_ratios,
    paired,
    seeds_of,
)
from adagc_lab.reproduce.pool import (
    JoinedExperiment,
    Method,
    PooledResults,
)
from adagc_lab.reproduce.results import SPIKE_EVENTS
from adagc_lab.reproduce.statistics import MIN_SEEDS, mean_limits

MEAN = "mean_loss"
COLUMNS = {
    "spiking": (MASS, SPIKE_EVENTS, PRICE, MEAN),
    "faults": ("excess_area", "excess_area_global", SPIKE_EVENTS, PRICE),
    "calm": ("validation_loss", MASS, PRICE),
}
"""Situation -> measures of its table: gains before prices."""

LOW = "0.1"
"""``lambda_abs`` of the cheap alternative."""

Fits = Callable[[float, float], bool]
"""Whether 95% limits put a row into a list."""

_BASE, _START = "lambda_abs", ("init", "init_value")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measure of two methods, on all seeds that have it."""

    measure: str
    pairs: list[Pair]

    @functools.cached_property
    def numbers(self) -> tuple[float, float, float]:
        """A ratio of masses, or a mean difference; 95% limits."""
        if self.measure == MASS:
            value, low, high = mean_limits(log_ratios(self.pairs))
            return math.exp(value), math.exp(low), math.exp(high)
        return mean_limits(differences_of(self.pairs, self.measure))

    @property
    def text(self) -> str:
        """``"14.1 → 0.12 (× 0.008, 0.006-0.01)"``, ``"+0.6 (+0.5, +0.7)"``.

        A mass has arithmetic means, and the geometric mean of the ratios.
        """
        if self.measure == SPIKE_EVENTS:
            return change_of(self.pairs, SPIKE_EVENTS)
        value, low, high = self.numbers
        if self.measure == MASS:
            change = change_of(self.pairs, MASS)
            return f"{change} (× {value:.2g}, {low:.2g}-{high:.2g})"
        spec = "+.1f" if "area" in self.measure else "+.3f"
        return f"{value:{spec}} ({low:{spec}}, {high:{spec}})"


@dataclasses.dataclass(frozen=True)
class Row:
    """AdaGC beside GlobalGC on one experiment."""

    label: str
    is_named: bool
    """Whether the file of claims names it: the two-minute page shows those."""

    situation: str
    baseline: str
    """``lambda_abs`` of GlobalGC."""

    start: str
    """How gamma starts; "" as in the paper."""

    num_steps: int
    cells: dict[str, Cell]

    @property
    def num_seeds(self) -> int:
        """The most seeds of a cell."""
        return max(len(seeds_of(c.pairs)) for c in self.cells.values())

    def texts(self) -> list[str]:
        """Cells of its line; a cell with fewer seeds than the row says so."""
        found = []
        for measure in COLUMNS[self.situation]:
            cell = self.cells.get(measure)
            text = cell.text if cell else "–"
            if cell and len(seeds_of(cell.pairs)) < self.num_seeds:
                text += f" [{len(seeds_of(cell.pairs))} seeds]"
            found.append(text)
        return found

    def line(self) -> list[str]:
        """Its line: label, comparison, seeds, steps, measures."""
        own = f"AdaGC, {self.start}" if self.start else "AdaGC"
        compared = f"{self.baseline} → {own}"
        size = str(self.num_seeds), f"{self.num_steps:,}"
        return [self.label, compared, *size, *self.texts()]

    def as_json(self) -> dict[str, Any]:
        """What an independent check needs."""
        return {
            "situation": self.situation,
            "is_named": self.is_named,
            "line": self.line(),
            "cells": {
                measure: {
                    "keys": [run.run_id for run, _ in cell.pairs],
                    "other_keys": [run.run_id for _, run in cell.pairs],
                }
                for measure, cell in self.cells.items()
            },
        }


def make_rows(
    experiments: Iterable[JoinedExperiment],
    source: PooledResults,
    labels: Mapping[str, str],
) -> list[Row]:
    """Return every row, named ones first, in the order of ``labels``."""
    found = [
        row
        for joined in experiments
        for row in _rows_of(joined, source, labels)
    ]
    order = [*labels.values()]
    ranks = {label: i for i, label in enumerate(order)}
    found.sort(key=lambda row: ranks.get(row.label, len(order)))
    return found


def _rows_of(
    joined: JoinedExperiment, source: PooledResults, labels: Mapping[str, str]
) -> Iterator[Row]:
    arms = [(*_split(m), m) for m in joined.methods.values()]
    situation = "calm"
    if joined.first.faults:
        situation = "faults"
    elif '"data.kind": "fixed_sequences"' in next(iter(arms))[1]:
        situation = "spiking"
    for own_clip, setting, own in arms:
        start = _start_of(own_clip)
        if start is None:
            continue
        for clip, its, other in arms:
            baseline = clip.get(_BASE, 1.0)
            is_same = baseline == own_clip.get(_BASE, 1.0)
            if (
                clip.get("name") != "global_norm"
                or its != setting
                or not (is_same or f"{baseline:g}" == LOW)
            ):
                continue
            sides = source.runs_of(own), source.runs_of(other)
            pairs = {m: paired(*sides, m) for m in COLUMNS[situation]}
            label = _label(joined, setting, arms, labels)
            is_named = label in labels.values() and not start
            named = label, is_named, situation, f"{baseline:g}", start
            lengths = {run.num_steps for p in pairs.values() for run, _ in p}
            for length in sorted(lengths):
                row = Row(*named, length, _cells(pairs, length))
                if row.num_seeds >= MIN_SEEDS:
                    yield row


def _cells(pairs: Mapping[str, list[Pair]], length: int) -> dict[str, Cell]:
    """Return the measures of the pairs of a length."""
    return {
        measure: Cell(measure, own)
        for measure, found in pairs.items()
        if (own := by_length(found).get(length))
    }


def _split(method: Method) -> tuple[dict[str, Any], str]:
    """Return the clip's arguments, and all else as text."""
    config = json.loads(method.signature)
    clip = {k[5:]: config.pop(k) for k in [*config] if k.startswith("clip.")}
    return clip, json.dumps(config, sort_keys=True)


def _start_of(clip: Mapping[str, Any]) -> str | None:
    """How gamma starts under AdaGC; None: it is another clip or has more."""
    other = {*clip} - {"name", _BASE, *_START}
    if clip.get("name") != "adagc" or other:
        return None
    return " ".join(str(clip[key]) for key in _START if key in clip)


def _label(
    joined: JoinedExperiment,
    setting: str,
    arms: Iterable[tuple[dict[str, Any], str, Method]],
    labels: Mapping[str, str],
) -> str:
    """The name in the file of claims, or the title; and the other epsilon."""
    known = (labels[key] for key in joined.keys if key in labels)
    label = next(known, joined.first.title)
    settings = [*dict.fromkeys(its for _, its, _ in arms)]
    if len(settings) == 1 or setting == settings[0]:
        return label
    first, own = (json.loads(s) for s in (settings[0], setting))
    changed = {k: own[k] for k in own if own[k] != first.get(k)}
    shown = ", ".join(f"{k.split('.')[-1]} {v}" for k, v in changed.items())
    return f"{label}, {shown}"


def _without_sign_of_zero(text: str) -> str:
    is_zero = not text.lstrip("+-").strip("0.")
    return text.lstrip("+-") if is_zero else text


def answers(rows: Sequence[Row]) -> dict[str, str]:
    """Lists of recipes for the sentences of the page."""

    def chosen(
        situation: str, measure: str, fits: Fits, *, is_low: bool = False
    ) -> list[tuple[Row, str]]:
        return [
            (row, _without_sign_of_zero(cell.text.partition(" (")[0]))
            for row in rows
            if row.is_named and row.situation == situation
            if (row.baseline == LOW) == is_low
            if (cell := row.cells.get(measure)) and fits(*cell.numbers[1:])
        ]

    def listed(*choice: Any, **more: Any) -> str:
        names: dict[str, list[str]] = {}
        for row, text in chosen(*choice, **more):
            name = row.label.partition(", calm")[0]
            names.setdefault(name, []).append(text)
        found = [f"{name} ({' and '.join(x)})" for name, x in names.items()]
        return "; ".join(found) or "none"

    def with_lengths(*choice: Any) -> str:
        lengths: dict[str, list[str]] = {}
        for row, _ in chosen(*choice):
            lengths.setdefault(row.label, []).append(f"{row.num_steps:,}")
        names = [
            f"{name} ({' and '.join(', '.join(x).rsplit(', ', 1))} steps)"
            for name, x in lengths.items()
        ]
        return "; ".join(names) or "none"

    def at_each_length(*choice: Any) -> str:
        names: dict[int, list[str]] = {}
        for row, text in chosen(*choice):
            names.setdefault(row.num_steps, []).append(f"{row.label} ({text})")
        parts = [
            f"at {n:,} steps on {'; '.join(names[n])}" for n in sorted(names)
        ]
        return ", ".join(parts) or "nowhere"

    def low(measure: str, fits: Fits, situation: str = "spiking") -> str:
        return listed(situation, measure, fits, is_low=True)

    def mean_too() -> str:
        """Where the mean loss falls from the low threshold to AdaGC."""
        by_mass = chosen("spiking", MASS, lambda _, high: high < 1, is_low=True)
        by_mean = chosen("spiking", MEAN, lambda _, high: high < 0, is_low=True)
        if [row for row, _ in by_mass] == [row for row, _ in by_mean]:
            return "so does the mean loss"
        return f"the mean loss on {low(MEAN, lambda low, high: high < 0)}"

    loss, area = "validation_loss", "excess_area"
    total = "excess_area_global"
    return {
        "less_mass": with_lengths(
            "spiking", MASS, lambda low, high: high < 0.5
        ),
        "same_mass": with_lengths(
            "spiking", MASS, lambda low, high: high >= 0.5
        ),
        "priced": at_each_length("spiking", PRICE, lambda low, high: low > 0),
        "cheaper": at_each_length("spiking", PRICE, lambda low, high: high < 0),
        "other_mean": with_lengths(
            "spiking", MEAN, lambda low, high: high >= 0
        ),
        "low_mass": low(MASS, lambda low, high: high < 1),
        "low_same": low(MASS, lambda low, high: high >= 1),
        "low_cheaper": low(PRICE, lambda low, high: high < 0),
        "low_mean": mean_too(),
        "low_priced": low(PRICE, lambda low, high: low > 0),
        "low_worse": low(area, lambda low, high: low > 0, "faults"),
        "low_better": low(area, lambda low, high: high < 0, "faults"),
        "low_total_better": low(total, lambda low, high: high < 0, "faults"),
        "low_total": low(total, lambda low, high: low > 0, "faults"),
        "alike": listed(
            "calm", loss, lambda low, high: -0.01 < low <= high < 0.01
        ),
        "higher": listed("calm", loss, lambda low, high: low > 0.01),
        "better_faults": listed("faults", area, lambda low, high: high < 0),
        "worse_faults": listed("faults", area, lambda low, high: low > 0),
        "better_in_all": listed("faults", total, lambda low, high: high < 0),
        "worse_in_all": listed("faults", total, lambda low, high: low > 0),
    }
