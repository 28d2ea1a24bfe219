# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One state for all ranks, that any other parallel layout can load."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import paddle.distributed as dist

from paddle_adagc.state import GLOBAL, ROUNDING, ClipState, Quantity

_OF_A_COUNT = 0.01
"""Difference of counts between ranks that is still rounding."""


def gather_state(
    state: ClipState,
    observed: Collection[str],
    quantities: Sequence[Quantity],
) -> ClipState:
    """Merge all ranks' states; every rank has to call it.

    Args:
        state: This rank's.
        observed: Keys whose gradients this rank has met.
        quantities: Quantities that the clip keeps.

    Returns:
        The merged state, the same on every rank; on one process its own.

    Raises:
        RuntimeError: Ranks disagree about a number that they all follow.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return state
    parts: list[tuple[ClipState, Collection[str]]] = []
    dist.all_gather_object(parts, (state.to_numpy(), observed))
    return merge(parts, quantities)


def merge(
    parts: Sequence[tuple[ClipState, Collection[str]]],
    quantities: Sequence[Quantity],
) -> ClipState:
    """Join the states of ranks that hold parts of one model.

    Args:
        parts: Per rank its state (NumPy), and the keys whose gradients it has
            met: under owner-based sharding the other ranks' numbers about a
            tensor are out of date. Without any observation of a tensor its
            start value stays.
        quantities: Quantities that the clip keeps.

    Raises:
        RuntimeError: Ranks disagree about a number that they all follow.
    """
    first = parts[0][0]
    table: dict[str, tuple[dict[str, float], bool]] = {}
    for state, observed in parts:
        columns = {n: v.tolist() for n, v in state.values.items()}
        for i, key in enumerate(state.keys):
            row = {name: column[i] for name, column in columns.items()}
            has_seen = key in observed and all(map(math.isfinite, row.values()))
            if key not in table or (has_seen and not table[key][1]):
                table[key] = (row, has_seen)
            elif has_seen:
                _check_agreement(key, table[key][0], row, quantities)
        for q in (q for q in quantities if q.is_global):
            known, other = (s.scalars[q.name].item() for s in (first, state))
            _check_agreement(GLOBAL, {q.name: known}, {q.name: other}, [q])
    values = {
        name: np.array([row[name] for row, _ in table.values()], np.float32)
        for name in first.values
    }
    return dataclasses.replace(first, keys=tuple(table), values=values)


def _check_agreement(
    key: str,
    known: Mapping[str, float],
    other: Mapping[str, float],
    quantities: Sequence[Quantity],
) -> None:
    """Refuse numbers of one tensor that differ by more than rounding.

    A deviation is a difference of numbers of gamma's size, so that its rounding
    errors are of that size too; those of a count are those of its outliers.
    """
    size = max(known[q.name] for q in quantities if q.absent is None)
    for quantity in quantities:
        name = quantity.name
        is_count = quantity.absent is not None
        if name in known and not (
            known[name] == other[name]
            or math.isclose(
                known[name],
                other[name],
                rel_tol=quantity.tolerance,
                abs_tol=_OF_A_COUNT if is_count else ROUNDING * size,
            )
        ):
            raise RuntimeError(
                f"ranks disagree about {name} of {key!r}: {known[name]} and "
                f"{other[name]}; was bind() given this run's model, were the "
                "gradients of replicated tensors averaged, and do experts "
                "have their global numbers in their names?"
            )
