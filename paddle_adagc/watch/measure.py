# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numbers of each step that follow from its tensors. NumPy alone."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from paddle_adagc.watch.ring import Steps
from paddle_adagc.watch.shadow import Factors
from paddle_adagc.watch.tensors import Usual

OWN_FIELDS = frozenset(
    (
        *("step", "loss", "learning_rate", "step_seconds", "warm_up"),
        *("skipped", "reason", "overflow", "nonfinite", "tensor_norm", "stuck"),
        *("global_grad_norm", "clipped_grad_norm", "clipped_fraction"),
        *("h_min", "h_median", "shadow_clipped_grad_norm"),
        *("shadow_clipped_fraction", "shadow_h_min", "shadow_h_median"),
        *("small_second_moment", "masked"),
    )
)
"""Numbers of a step that the record has itself."""

_WINDOW = 128  # steps whose norms are usual
_NUM_NAMED = 3
STUCK_H, STUCK_STEPS = 0.01, 200
"""A tensor with a lower h in so many steps is stuck."""


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
        acting = steps.tensors.get("acting_h")
        named = {"": factors(norm, steps.keys) if acting is None else acting}
        named["shadow_"] = h
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
        steps.rows[i] |= {name: column[i] for name, column in values.items()}
    small, every = steps.num_small
    if every:
        steps.rows[-1]["small_second_moment"] = small / every


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


def known(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is NaN, which stands for unknown; but not of the loss."""
    return {n: x for n, x in row.items() if n == "loss" or x == x}


class Tensors:
    """What is usual of each tensor of a running training.

    Args:
        norms: Of the last steps before, ``[num_rows, num_tensors]``.
        keys: Their names.
    """

    def __init__(self, norms: np.ndarray, keys: list[str]) -> None:
        self._keys = {key: i for i, key in enumerate(keys)}
        self._rows = deque[np.ndarray](norms[-_WINDOW:], maxlen=_WINDOW)
        self._num_low = np.zeros(len(keys), np.int64)

    def add(self, steps: Steps, is_ours: bool) -> list[list[str]]:
        """Add ``tensor_norm`` and ``stuck`` to the rows of steps.

        ``tensor_norm`` is the largest ratio of an abnormal norm to its usual
        one, 1 if none is; ``stuck`` counts tensors newly below h 0.01 for 200
        steps.

        Args:
            steps: The next ones.
            is_ours: A clip of this package acts.

        Returns:
            By step, the tensors farthest from what is usual, in words.
        """
        for key in steps.keys:
            self._keys.setdefault(key, len(self._keys))
        places = [self._keys[key] for key in steps.keys]
        norm, h = (self._widened(steps, n, places) for n in ("norm", "h"))
        ratio = self._ratios(norm)
        largest = np.where(np.isinf(ratio), 1, ratio).max(1, initial=1)
        self._rows.extend(norm)
        names, found = [*self._keys], []
        for i, row in enumerate(steps.rows):
            found.append(_named(names, ratio[i]))
            if np.isnan(h[i]).all():
                continue
            row["tensor_norm"] = float(largest[i])
            if is_ours and not row.get("skipped"):
                is_known = np.isfinite(norm[i]) & (norm[i] > 0)
                row["stuck"] = self._newly_stuck(h[i], is_known)
        return found

    def _widened(
        self, steps: Steps, name: str, places: list[int]
    ) -> np.ndarray:
        shape = len(steps.rows), len(self._keys)
        table = np.full(shape, np.nan, np.float32)
        table[:, places] = steps.tensors[name]
        return table

    def _ratios(self, norm: np.ndarray) -> np.ndarray:
        """Return norm over usual where that is abnormal; 1 elsewhere."""
        past = np.full((len(self._rows), norm.shape[1]), np.nan)
        for row, mine in zip(past, self._rows, strict=True):
            row[: len(mine)] = mine
        ratio, is_abnormal = Usual.of(past).excess(norm)
        return np.where(is_abnormal, ratio, 1.0)

    def _newly_stuck(self, h: np.ndarray, is_known: np.ndarray) -> int:
        before = self._num_low
        self._num_low = np.zeros(len(h), np.int64)
        self._num_low[: len(before)] = before
        is_low = (h < STUCK_H) & is_known
        self._num_low = np.where(is_low, self._num_low + 1, 0)
        return int(np.sum(self._num_low == STUCK_STEPS))


def _named(keys: list[str], ratio: np.ndarray) -> list[str]:
    order = np.argsort(-ratio, kind="stable")[:_NUM_NAMED]
    return [
        f"{keys[i]} (Inf or NaN)"
        if np.isinf(ratio[i])
        else f"{keys[i]} ({ratio[i]:.3g} times its usual norm)"
        for i in order.tolist()
        if ratio[i] > 1
    ]
