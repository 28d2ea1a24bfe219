# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs of a recipe, paired by seed, length, type of processor and data."""

from __future__ import annotations

from collections.abc import Container, Iterable

import numpy as np
import pandas as pd

from adagc_lab.report.measures import Row, damage, measure, shared_peaks

REFERENCE = "GlobalGC 1"
"""Method that the others are compared with."""

OVER_REFERENCE = "damage_over_reference"
_OF_TWINS = (
    *("damage", "damage_at_first", OVER_REFERENCE),
    *("fault_peaks", "worst_rise"),
)

Key = tuple[int, str, str]  # seed, processor, SHA-256 of the data


class Pairs:
    """Runs of one recipe, paired by seed, length, processor and data."""

    def __init__(self, rows: pd.DataFrame, reference: str) -> None:
        """``rows`` as :func:`.store.load` gives them; ``reference`` a method.

        A run that several targets hold counts once, and so does a seed that
        ran on several processors: the one whose processor is known.
        """
        self.reference = reference
        self.rows: list[Row] = rows.sort_values(
            ["processor"], ascending=False, kind="stable"
        ).to_dict("records")
        self._measured: dict[int, dict[str, float]] = {}

    def methods(self) -> list[str]:
        """All methods but the reference."""
        found = dict.fromkeys(row["method"] for row in self.rows)
        return [method for method in found if method != self.reference]

    def lengths(self) -> list[int]:
        """Lengths of the runs, shortest first."""
        return sorted({row["steps"] for row in self.rows})

    def runs(self, method: str, steps: int, twin: int = 0) -> dict[Key, Row]:
        """Runs of a method and length."""
        found: dict[Key, Row] = {}
        for row in self.rows:
            is_own = row["method"] == method and row["steps"] == steps
            if is_own and row["clean_twin"] == twin:
                key = row["seed"], row["processor"], row["data"]
                found.setdefault(key, row)
        return found

    def values(
        self, method: str, steps: int, name: str
    ) -> tuple[list[float], list[float]]:
        """Return the reference's numbers and the method's, seed by seed.

        ``name`` is a column, or a number of :func:`measure` or
        :func:`damage`; with ``damage_over_reference`` the other run is the
        reference's clean twin. Pairs in which one has no such number are left
        out.
        """
        ours = self.numbers(method, steps, name)
        others = self.numbers(self.reference, steps, name)
        kept = _one_a_seed(others, ours)
        return [others[k] for k in kept], [ours[k] for k in kept]

    def shared_peaks(self, method: str, steps: int) -> int:
        """Return how many of the reference's peaks the method has, too."""
        ours, others = (
            self.runs(method, steps),
            self.runs(self.reference, steps),
        )
        measured = self.numbers(method, steps, "peaks")
        kept = _one_a_seed(
            self.numbers(self.reference, steps, "peaks"), measured
        )
        return sum(shared_peaks(others[k], ours[k]) for k in kept)

    def differences(self, method: str, steps: int, name: str) -> list[float]:
        """Return the method's numbers minus the reference's, seed by seed."""
        others, ours = self.values(method, steps, name)
        with np.errstate(invalid="ignore"):  # both diverged
            return [float(x) for x in np.subtract(ours, others)]

    def numbers(self, method: str, steps: int, name: str) -> dict[Key, float]:
        """Return one number of a method's runs."""
        base = self.reference if name == OVER_REFERENCE else method
        twins = self.runs(base, steps, 1) if name in _OF_TWINS else {}
        found = {}
        for key, row in self.runs(method, steps).items():
            if name in _OF_TWINS:
                value = self._damage(row, twins.get(key), name)
            elif name in row:
                value = row[name]
            else:
                if id(row) not in self._measured:
                    self._measured[id(row)] = measure(row)
                value = self._measured[id(row)].get(name, np.nan)
            if not np.isnan(value):
                found[key] = float(value)
        return found

    def _damage(self, row: Row, twin: Row | None, name: str) -> float:
        if twin is None or not row["faults"]:
            return np.nan
        if not row["num_losses"] or not twin["num_losses"]:
            return np.nan
        found = damage(row, twin)
        return found.get("damage" if name == OVER_REFERENCE else name, np.nan)


def _one_a_seed(others: Iterable[Key], ours: Container[Key]) -> list[Key]:
    """Return the first key of each seed that both have."""
    keys: dict[int, Key] = {}
    for key in others:
        if key in ours:
            keys.setdefault(key[0], key)
    return [*keys.values()]
