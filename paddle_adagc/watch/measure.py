# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numbers of each step that follow from its tensors. NumPy alone."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paddle_adagc.watch.tensors import medians

Factors = Callable[[np.ndarray, Sequence[str]], np.ndarray | None]
"""Norms ``[num_steps, num_tensors]`` and names of the tensors -> factors of the
clip that acts; None: the norms do not say them."""

OWN_FIELDS = frozenset(
    (
        *("step", "loss", "learning_rate", "step_seconds"),
        *("skipped", "reason", "overflow", "nonfinite"),
        *("global_grad_norm", "clipped_grad_norm", "clipped_fraction"),
        *("h_min", "h_median", "shadow_clipped_grad_norm"),
        *("shadow_clipped_fraction", "shadow_h_min", "shadow_h_median"),
    )
)
"""Numbers of a step that the record has itself."""


@dataclasses.dataclass(frozen=True)
class Steps:
    """Steps on the host: of one rank, or of the whole model."""

    rows: list[dict[str, Any]]
    """Numbers by step, ``step`` and, where it is known, ``loss`` among them."""

    keys: list[str]
    tensors: dict[str, np.ndarray]
    """Norm, gamma and h, float32 ``[num_steps, num_tensors]``. In a step that
    the clip did not see they are NaN; a norm of 0 is that of no gradient,
    Inf of one with Inf or NaN."""

    @property
    def nonfinite(self) -> list[tuple[int, float]]:
        """The first step whose loss is not finite, with that loss."""
        found = ((row["step"], row.get("loss", 0.0)) for row in self.rows)
        return [(i, x) for i, x in found if not math.isfinite(x)][:1]

    def without_tensors(self) -> Steps:
        """Return the numbers of the steps alone."""
        tables = {name: table[:, :0] for name, table in self.tensors.items()}
        return Steps(self.rows, [], tables)


def check_numbers(numbers: Mapping[str, Any]) -> None:
    """Refuse what the file could not hold, or would take for its own.

    Raises:
        TypeError, ValueError: For :meth:`.Record.step`.
    """
    for name, value in numbers.items():
        if name in OWN_FIELDS:
            raise ValueError(
                f"record.step({name}={value!r}): {name!r} is the record's own, "
                "which counts and measures itself: give the number another name"
            )
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"record.step({name}=...): {error}; give float(), int(), text "
                "or a list of these"
            ) from error


def add_numbers(
    steps: Steps, factors: Factors | None, is_part: bool = False
) -> None:
    """Add to each step that a clip has seen what it did, in ``steps.rows``.

    Args:
        steps: Of the whole model; h and gamma of steps that were left out
            become 0 and NaN.
        factors: Those of the clip that acts; None: of the recorded one.
        is_part: Other ranks have more tensors: the model's numbers are then
            unknown.
    """
    norm, h = steps.tensors["norm"], steps.tensors["h"]
    named: dict[str, np.ndarray | None] = {"": h}
    if factors is not None:
        named = {"": factors(norm, steps.keys), "shadow_": h}
    is_seen = ~np.isnan(h).all(1)
    is_skipped = np.array([row.get("skipped", False) for row in steps.rows])
    h[is_skipped], steps.tensors["gamma"][is_skipped] = 0, np.nan
    finite = np.isfinite(norm) & (norm > 0)
    mine = np.where(finite, norm, 0).astype(np.float64)
    columns: dict[str, np.ndarray] = {"nonfinite": np.sum(np.isinf(norm), 1)}
    if not is_part:
        columns["global_grad_norm"] = np.sqrt(np.sum(mine**2, 1))
        for prefix, table in named.items():
            if table is not None:
                table = np.where(is_skipped[:, None], 0, table)
                numbers = _of_factors(mine, table, finite)
                columns |= {prefix + k: x for k, x in numbers.items()}
    values = {name: column.tolist() for name, column in columns.items()}
    for i in np.flatnonzero(is_seen):
        known = {n: x[i] for n, x in values.items() if x[i] == x[i]}
        steps.rows[i] |= known


def _of_factors(
    norm: np.ndarray, h: np.ndarray, known: np.ndarray
) -> dict[str, np.ndarray]:
    """Return numbers of each step, ``[num_steps]``, from what is known."""
    known = known & ~np.isnan(h)
    count, table = known.sum(1), np.where(known, h, np.nan)
    left = np.where(known, h, 0) * norm
    numbers = {
        "clipped_grad_norm": np.sqrt(np.sum(left**2, 1)),
        "clipped_fraction": (table < 1).sum(1) / np.maximum(count, 1),
        "h_min": np.fmin.reduce(table, 1, initial=np.inf),
        "h_median": medians(table.T),
    }
    return {n: np.where(count == 0, np.nan, x) for n, x in numbers.items()}


_WORST = {
    "h_min_worst": ("h_min", 1),
    "shadow_h_min_worst": ("shadow_h_min", 1),
    "global_grad_norm_max": ("global_grad_norm", -1),
}


class Unlogged:
    """The worst of the steps since a log was written."""

    def __init__(self) -> None:
        self.latest: dict[str, Any] = {}
        """The numbers of the last step that are known."""
        self._worst: dict[str, Any] = {}
        self._num_alarms = 0

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the next steps."""
        self.latest = {n: x for n, x in rows[-1].items() if x == x}
        for row in rows:
            for label, (name, sign) in _WORST.items():
                value = row.get(name, math.nan)
                worst = self._worst.get(label, sign * math.inf)
                if sign * value < sign * worst:
                    found = {label: value, f"{label}_step": row["step"]}
                    self._worst |= found

    def take(self, num_alarms: int) -> dict[str, Any]:
        """Return the worst numbers, and how many alarms came; begin anew."""
        found = {"alarms": num_alarms - self._num_alarms, **self._worst}
        self._worst, self._num_alarms = {}, num_alarms
        return found
