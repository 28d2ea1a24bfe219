# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What all ranks have to agree on.

A missing all-reduce over data-parallel ranks, missing hooks of sequence
parallelism, experts without marks or with another rank's names: each leaves
numbers that look right on every single rank. So the norms of one step are
compared, once, and every number when states are joined.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import paddle.distributed as dist
from paddle import Tensor

from paddle_adagc.parallel.reduce import Reducer
from paddle_adagc.state import ClipState

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RELATIVE = 0.02
_ABSOLUTE = 1e-3  # of the largest norm: a gradient may be all rounding error
_OF_A_COUNT = 0.01  # difference of counts between ranks that is still rounding

_CAUSES = (
    "was bind() given this run's model, were the gradients of replicated "
    "tensors averaged (fleet.distributed_model, hooks of sequence "
    "parallelism), and do experts have their global numbers in their names? "
    "PaddleFormers sums q_norm and k_norm with sequence_parallel alone. "
    "overrides={'q_norm': None} leaves a tensor out"
)


@contextlib.contextmanager
def every_rank_calls(function: str) -> Iterator[None]:
    """Say of a failed exchange what every rank has to do.

    Raises:
        RuntimeError: The exchange within failed.
    """
    try:
        yield
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise RuntimeError(
            f"the ranks did not meet in {function}: every rank has to call it, "
            "after the same step, also those that save or print nothing. The "
            f"exchange failed with: {reason[-1] if reason else repr(error)}"
        ) from error


def of_all_ranks(mine: T) -> list[T]:
    """Gather a value of each rank, which all call this; of one alone: its."""
    found: list[T] = [mine]
    if dist.is_initialized() and dist.get_world_size() > 1:
        found = []
        dist.all_gather_object(found, mine)
    return found


def compare_settings(settings: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a setting that differs between ranks, by name.

    With another threshold a rank changes its copies of the weights otherwise
    than the others do, and nothing shows it.
    """
    for name in dict.fromkeys(name for mine in settings for name in mine):
        values = [mine.get(name) for mine in settings]
        ranks = [i for i, value in enumerate(values) if value != values[0]]
        if ranks:
            raise RuntimeError(
                f"ranks have different clips: {name} is {values[0]!r} on rank "
                f"0, and {values[ranks[0]]!r} on rank {ranks[0]} "
                f"({len(ranks)} of {len(values)} ranks differ from rank 0): "
                "make, load and restart the clip alike on all ranks"
            )


class RankView(NamedTuple):
    """What a rank reports to the others."""

    norms: Mapping[str, float]  # of whole tensors with a gradient here, by key
    group: tuple[int, ...] = ()  # that shares slices of dense tensors (V2)
    dense: tuple[str, ...] = ()  # their keys in the order of their sums
    has_experts: bool = False  # some of its tensors are marked as experts


def compare(views: Sequence[RankView], num_expert_ranks: int) -> None:
    """Refuse norms that differ between ranks, and experts without marks.

    Those show as different tensors of ranks that share slices, or under EP as
    no tensor that is marked.
    """
    holders: dict[tuple[int, ...], tuple[int, tuple[str, ...]]] = {}
    for rank, view in enumerate(views):
        first, dense = holders.setdefault(view.group, (rank, view.dense))
        if view.group and view.dense != dense:
            mine, other = (
                next((key for key in a if key not in b), "none")
                for a, b in ((view.dense, dense), (dense, view.dense))
            )
            raise RuntimeError(
                f"ranks {first} and {rank} share slices of the same tensors "
                f"(sharding V2), but have different ones: {other!r} and "
                f"{mine!r}. Are those experts without an expert's mark "
                "(no_sync, expert, color)?"
            )
    if num_expert_ranks > 1 and not any(view.has_experts for view in views):
        raise RuntimeError(
            f"fleet has {num_expert_ranks} expert-parallel ranks (ep_degree), "
            "and no rank has a tensor with an expert's mark: fleet averages "
            "the gradients of different experts. Leave ep_degree out if there "
            "are none; else mark them before bind(): parameter.expert = "
            "parameter.no_sync = True; parameter.color = "
            "{'color': 'moe_expert', 'group': GROUP}"
        )
    largest = max(max(v.norms.values(), default=0.0) for v in views)
    known: dict[str, tuple[int, float]] = {}
    for rank, view in enumerate(views):
        for key, norm in view.norms.items():
            first, expected = known.setdefault(key, (rank, norm))
            if not math.isclose(
                norm, expected, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE * largest
            ):
                raise RuntimeError(
                    f"ranks {first} and {rank} disagree about the norm of "
                    f"{key!r}'s gradient, {expected:.6g} and {norm:.6g}: "
                    f"{_CAUSES}"
                )


def refuse_nonfinite(
    norm: Tensor, keys: Sequence[str], step: int, reducer: Reducer
) -> None:
    """Stop on all ranks if a norm is not finite; waits for the device.

    Without fleet (``paddle.DataParallel`` alone) nothing tells which ranks take
    part: only those raise that found it. After the all-reduce of gradients
    these are all.
    """
    mine = [keys[i] for i in np.flatnonzero(~np.isfinite(norm.numpy()))]
    found = reducer.gather_if_any(bool(mine), mine)
    places = []
    for key in dict.fromkeys(key for its_keys in found for key in its_keys):
        ranks = [str(rank) for rank, keys in enumerate(found) if key in keys]
        where = f" on rank {', '.join(ranks)}"
        if len(ranks) == len(found):
            where = " on all ranks" if len(found) > 1 else ""
        places.append(key + where)
    if places:
        raise FloatingPointError(
            f"the gradient of {len(places)} tensors is not finite at step "
            f"{step}: {'; '.join(places)}"
        )


def settings_of(state: ClipState) -> dict[str, Any]:
    """Return what must not differ between ranks."""
    counts = {"num_steps": state.step, "warmup_start": state.warmup_start}
    return {**state.config, **counts}


def gather_state(
    state: ClipState, observed: Collection[str], nonfinite: Mapping[str, int]
) -> ClipState:
    """Merge all ranks' states; every rank has to call it. See :func:`merge`."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return state
    with every_rank_calls("full_state_dict()"):
        parts = of_all_ranks((state.to_numpy(), observed, nonfinite))
    compare_settings([settings_of(part[0]) for part in parts])
    warn_of_nonfinite([part[1:] for part in parts])
    return merge([part[:2] for part in parts])


def warn_of_nonfinite(
    parts: Sequence[tuple[Collection[str], Mapping[str, int]]],
) -> None:
    """Name tensors that were Inf or NaN in more steps on some of their ranks.

    ``parts``: keys that a rank has observed, and key -> number of such steps.
    """
    for key in sorted({key for _, nonfinite in parts for key in nonfinite}):
        counts = {
            rank: nonfinite.get(key, 0)
            for rank, (observed, nonfinite) in enumerate(parts)
            if key in observed
        }
        if len({*counts.values()}) > 1:
            logger.warning(
                "the gradient of %r was Inf or NaN on some of its ranks alone "
                "(steps by rank: %s), so its weights differ from rank to rank: "
                "resume from an earlier checkpoint",
                key,
                counts,
            )


def merge(parts: Sequence[tuple[ClipState, Collection[str]]]) -> ClipState:
    """Join the states of ranks that hold parts of one model.

    ``parts`` are each rank's state (NumPy), and the keys whose gradients it has
    observed: under owner-based sharding the other ranks' numbers about a tensor
    are out of date. Without any observation of a tensor its start value stays.
    A RuntimeError names a number that ranks disagree about.
    """
    table: dict[str, tuple[dict[str, float], bool]] = {}
    for state, observed in parts:
        columns = {n: v.tolist() for n, v in state.vectors().items()}
        for i, key in enumerate(state.keys):
            row = {name: column[i] for name, column in columns.items()}
            has_seen = key in observed and all(map(math.isfinite, row.values()))
            if key not in table or (has_seen and not table[key][1]):
                table[key] = (row, has_seen)
            elif has_seen:
                _refuse_other_numbers(key, table[key][0], row)
    first = parts[0][0]
    vectors: dict[str, Any] = {
        name: np.array([row[name] for row, _ in table.values()], np.float32)
        for name in first.vectors()
    }
    return dataclasses.replace(first, keys=tuple(table), **vectors)


def _refuse_other_numbers(
    key: str, known: Mapping[str, float], other: Mapping[str, float]
) -> None:
    for name, mine in known.items():
        least = _OF_A_COUNT if name == "support" else 0.0
        if not math.isclose(
            mine, other[name], rel_tol=_RELATIVE, abs_tol=least
        ):
            raise RuntimeError(
                f"ranks disagree about {name} of {key!r}: {mine} and "
                f"{other[name]}; {_CAUSES}"
            )
