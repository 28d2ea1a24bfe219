# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of the figures: two methods compared, with 95% limits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from adagc_lab.markdown import markdown_table
from adagc_lab.reproduce.claims import Figure, FigureRow
from adagc_lab.reproduce.comparisons import differences_of, rate_of
from adagc_lab.reproduce.drawings import forest_svg
from adagc_lab.reproduce.pool import PooledResults
from adagc_lab.reproduce.results import (
    SPIKE_EVENTS,
    RunResult,
    paired,
)
from adagc_lab.reproduce.statistics import mean_limits, rate_ratio

MASS = "spike_mass"
RATIOS = (SPIKE_EVENTS, MASS)
LEAST_MASS = 0.01
"""Smaller masses count as this, so that a ratio of zero has a logarithm."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Two methods of one experiment, compared on paired seeds."""

    label: str
    measure: str
    value: float
    """A ratio of rates or of geometric means, or a mean difference."""

    low: float
    high: float
    """Its 95% limits."""

    runs: list[RunResult]
    others: list[RunResult]

    @property
    def text(self) -> str:
        """``"0.10 (0.00-0.70)"`` or ``"+0.061 (+0.055 to +0.068)"``."""
        if self.measure in RATIOS:
            text = f"{self.value:.2g} ({self.low:.2g}-{self.high:.2g})"
            return text.replace("inf", "∞")
        spec = "+.1f" if "area" in self.measure else "+.3f"
        return f"{self.value:{spec}} ({self.low:{spec}}, {self.high:{spec}})"

    @property
    def short(self) -> str:
        """The number without its limits: ``"+0.061"``."""
        return self.text.partition(" (")[0]

    @property
    def change(self) -> str:
        """The other's number and this one's: ``"10 → 1"``."""
        if self.measure == SPIKE_EVENTS:
            rates = rate_of(self.runs), rate_of(self.others)
            return f"{rates[1].events} → {rates[0].events}"
        first, second = (
            math.fsum(r.measures[self.measure] for r in side) / len(side)
            for side in (self.runs, self.others)
        )
        spec = ".4f" if "loss" in self.measure else ".3g"
        return f"{second:{spec}} → {first:{spec}}"

    def as_json(self) -> dict[str, Any]:
        """What an independent check needs."""
        return {
            "label": self.label,
            "measure": self.measure,
            "keys": [run.run_id for run in self.runs],
            "other_keys": [run.run_id for run in self.others],
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "text": self.text,
            "change": self.change,
        }


def estimate(
    figure: Figure, row: FigureRow, source: PooledResults
) -> Estimate | None:
    """Compare the two methods of a row; None without a pair."""
    measure = row.measure or figure.measure
    runs, others = (
        source.runs(row.target, row.experiment, name)
        for name in (row.method, row.to)
    )
    pairs = paired(runs, others, measure)
    if not pairs:
        return None
    first, second = ([*side] for side in zip(*pairs, strict=True))
    if measure == SPIKE_EVENTS:
        numbers = rate_ratio(rate_of(first), rate_of(second))
    elif measure == MASS:
        logs = np.log(
            [
                [max(run.measures[MASS], LEAST_MASS) for run in pair]
                for pair in pairs
            ]
        )
        value, low, high = map(math.exp, mean_limits(logs[:, 0] - logs[:, 1]))
        numbers = (value, low, high)
    else:
        numbers = mean_limits(differences_of(pairs, measure))
    return Estimate(row.label, measure, *numbers, first, second)


class Summary:
    """The figures of ``claims.yaml`` and what follows from them."""

    def __init__(
        self, figures: Sequence[Figure], source: PooledResults
    ) -> None:
        self.figures = [
            (figure, [*filter(None, found)])
            for figure in figures
            for found in [[estimate(figure, r, source) for r in figure.rows]]
        ]

    def svgs(self) -> dict[str, str]:
        """Content of each figure by its file."""
        return {
            figure.file: forest_svg(
                figure.title,
                rows,
                is_ratio=figure.measure in RATIOS,
                margin=None if figure.measure in RATIOS else figure.margin,
            )
            for figure, rows in self.figures
            if rows
        }

    def as_json(self) -> list[dict[str, Any]]:
        """Rows of all figures for an independent check."""
        return [
            {
                "file": figure.file,
                "headline": figure.headline,
                "rows": [row.as_json() for row in rows],
            }
            for figure, rows in self.figures
        ]

    def answers(self) -> dict[str, str]:
        """Lists of proxies for the sentences of the page."""
        headline = [
            (figure.measure, row)
            for figure, rows in self.figures
            if figure.headline
            for row in rows
        ]
        events, calm, faults = (
            [row for its, row in headline if its == name == row.measure]
            for name in (SPIKE_EVENTS, "validation_loss", "excess_area")
        )
        return {
            "fewer": _listed("change", (r for r in events if r.high < 1)),
            "not_fewer": _listed("change", (r for r in events if r.high >= 1)),
            "higher": _listed("short", (r for r in calm if r.low > 0.01)),
            "alike": _listed(
                "short", (r for r in calm if r.low > -0.01 and r.high < 0.01)
            ),
            "better_faults": _listed("text", (r for r in faults if r.high < 0)),
            "worse_faults": _listed("text", (r for r in faults if r.low > 0)),
        }

    def table(self, head: Sequence[str], names: Mapping[str, str]) -> str:
        """Every row of the headline figures; ``names`` calls the measures."""
        rows = [
            [r.label, names[r.measure], len(r.runs), r.change, r.text]
            for figure, estimates in self.figures
            for r in estimates
            if r.measure in names and figure.headline
        ]
        return markdown_table(head, rows, left=2)


def _listed(what: str, rows: Iterable[Estimate]) -> str:
    names = [f"{row.label} ({getattr(row, what)})" for row in rows]
    return ", ".join(names) or "none"
