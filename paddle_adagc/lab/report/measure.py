# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A measure: a number of a run, with what tables say about it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal

from paddle_adagc.lab.report.formatting import (
    Value,
    format_list,
    format_range,
    format_spread,
)
from paddle_adagc.lab.report.judged import JudgedRun

Level = Literal["detail", "brief", "headline"]
Form = Callable[[Sequence[Value]], str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of a run, and everything that tables say about it."""

    name: str
    """Its key in the stored results, for example ``"events_1000"``."""

    label: str
    """What tables call it, with the unit in parentheses."""

    meaning: str
    """What it is, in a sentence."""

    compute: Callable[[JudgedRun], Value]
    """None where it cannot be measured."""

    form: Form
    """Formats one value per seed as a cell."""

    better: Literal["lower", "higher"] | None = None
    """The direction that is better, None if neither is."""

    group: str = ""
    """Heading in the report's table; without one it is not in the table."""

    qualifier: str = ""
    """What tables without the group's heading add to the label."""

    level: Level = "detail"
    """``"brief"``: in the docs' short tables, too; ``"headline"``: also in the
    table of who wins."""

    change: str | None = None
    """Format of the paired difference, where short tables show it."""

    stored: bool = True
    """Whether it is one of the stored results."""

    @property
    def title(self) -> str:
        """The label with its qualifier."""
        return ", ".join(filter(None, (self.label, self.qualifier)))


def listed(spec: str = ",.0f") -> Form:
    """Return the form of one number per seed."""
    return functools.partial(format_list, spec=spec)


def ranged(spec: str) -> Form:
    """Return the form of one number per seed, of many seeds their range."""
    return functools.partial(format_range, spec=spec)


def spread(spec: str) -> Form:
    """Return the form of mean and standard deviation over seeds."""
    return functools.partial(format_spread, spec=spec)
