# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One method against another, or against a bound, and what its test said."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from paddle_adagc.lab.reproduce.results import CellResult

MIN_SEEDS = 8
"""Pairs that a verdict takes: with 8 the sign-flip test sees one standard
deviation with a power of 0.79, with 5 of 0.43."""


class Source(Protocol):
    """Where a rule finds its runs and its other numbers."""

    def runs(
        self, target: str, experiment: str, method: str
    ) -> list[CellResult]:
        """Every run of a method."""

    def numbers(
        self, target: str, experiment: str, method: str, measure: str
    ) -> list[float] | None:
        """Return what was timed, counted or modelled; None for runs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A method against another one or a bound, tested."""

    experiment: str
    measure: str
    expect: str
    method: str
    other: str | None = None
    margin: float | None = None
    times: float | None = None
    """The other's values are multiplied by it."""

    bound: float | None = None
    values: tuple[float, ...] = ()
    """Of what is no run."""

    keys: tuple[str, ...] = ()
    """Runs of the method."""

    other_keys: tuple[str, ...] = ()
    """Runs of the other, pair by pair."""

    beside_keys: tuple[str, ...] = ()
    """Runs of the other that the facts show though they do not pair."""

    num_seeds: int | None = None
    """Pairs; None for what is no run."""

    p_for: float | None = None
    """Of what is expected; None: not tested."""

    p_against: float | None = None
    """Of the opposite."""

    p_equal: float | None = None
    """Of a difference smaller than the margin."""

    seeds_to_decide: int | None = None
    detectable: float | None = None
    """Mean difference that so many pairs see with a power of 80%."""

    facts: tuple[str, ...] = ()
    """What was seen, method by method; several comparisons may share one."""

    missing: tuple[str, ...] = ()
    """Methods without a run."""

    test: str = ""
    """The test in words."""

    @property
    def has_enough(self) -> bool:
        """Whether a verdict may rest on it."""
        return self.num_seeds is None or self.num_seeds >= MIN_SEEDS

    def as_json(self) -> dict[str, Any]:
        """Its fields that hold something, for an independent check."""
        fields = dataclasses.asdict(self)
        for name in ("facts", "missing", "test"):
            del fields[name]
        return {k: v for k, v in fields.items() if v not in (None, ())}


def without_pairs(
    fields: Mapping[str, Any],
    own: Sequence[CellResult],
    others: Sequence[CellResult],
) -> Comparison:
    """Make a comparison without pairs: it says what has no run."""
    sides = [(fields["method"], own)]
    if fields.get("other"):
        sides.append((fields["other"], others))
    missing = tuple(str(name) for name, runs in sides if not runs)
    return Comparison(**fields, num_seeds=0, missing=missing)


def p_text(p_for: float, p_against: float) -> str:
    """``"p 0.0312"``, with the opposite's p where that is the smaller one."""
    text = f"p {p_for:.3g}"
    if p_against < p_for:
        text += f", the opposite p {p_against:.3g}"
    return text
