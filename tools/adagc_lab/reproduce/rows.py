# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC beside GlobalGC on every experiment that has both: gain and price.

Nobody chooses the rows. An experiment has one wherever AdaGC with the paper's
values, or with another start of gamma, and GlobalGC with the same
``lambda_abs``, or with 0.1, make :data:`.statistics.MIN_SEEDS` pairs and differ
in nothing but the clip. Each stands in the table of its situation: with faults,
set up to spike (the same few sequences again and again), or calm.
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
        """``"14.1 → 0.12 (× 0.006-0.01)"`` or ``"+0.06 (+0.05, +0.07)"``."""
        if self.measure == SPIKE_EVENTS:
            return change_of(self.pairs, SPIKE_EVENTS)
        value, low, high = self.numbers
        if self.measure == MASS:
            return f"{change_of(self.pairs, MASS)} (× {low:.2g}-{high:.2g})"
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
        """Its line: label, comparison, seeds, measures."""
        own = f"AdaGC, {self.start}" if self.start else "AdaGC"
        compared = f"{self.baseline} → {own}"
        return [self.label, compared, str(self.num_seeds), *self.texts()]

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
            cells = {m: Cell(m, p) for m, p in pairs.items() if p}
            label = _label(joined, setting, arms, labels)
            is_named = label in labels.values() and not start
            row = Row(label, is_named, situation, f"{baseline:g}", start, cells)
            if cells and row.num_seeds >= MIN_SEEDS:
                yield row


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


def answers(rows: Sequence[Row]) -> dict[str, str]:
    """Lists of recipes for the sentences of the page."""

    def listed(
        situation: str,
        measure: str,
        fits: Callable[[float, float], bool],
        baseline: str = "",
    ) -> str:
        names = [
            f"{row.label.partition(', calm')[0]} ({text})"
            for row in rows
            if row.is_named
            and row.situation == situation
            and (row.baseline == LOW) == (baseline == LOW)
            and (cell := row.cells.get(measure))
            and fits(*cell.numbers[1:])
            for text in [cell.text.partition(" (")[0]]
        ]
        return "; ".join(names) or "none"

    loss, area = "validation_loss", "excess_area"
    total = "excess_area_global"
    return {
        "less_mass": listed("spiking", MASS, lambda low, high: high < 0.5),
        "same_mass": listed("spiking", MASS, lambda low, high: high >= 0.5),
        "priced": listed("spiking", PRICE, lambda low, high: low > 0),
        "lower_mean": listed("spiking", MEAN, lambda low, high: high < 0),
        "low_mass": listed("spiking", MASS, lambda low, high: True, LOW),
        "low_price": listed("spiking", PRICE, lambda low, high: True, LOW),
        "alike": listed(
            "calm", loss, lambda low, high: -0.01 < low <= high < 0.01
        ),
        "higher": listed("calm", loss, lambda low, high: low > 0.01),
        "better_faults": listed("faults", area, lambda low, high: high < 0),
        "worse_faults": listed("faults", area, lambda low, high: low > 0),
        "worse_in_all": listed("faults", total, lambda low, high: low > 0),
        "open_faults": listed(
            "faults", area, lambda low, high: low <= 0 <= high
        ),
    }
