# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether ranks that hold copies of a tensor see the same gradient.

A missing all-reduce over data-parallel ranks, missing hooks of sequence
parallelism, experts without marks or with another rank's names: each leaves
numbers that look right on every single rank. So the norms of one step are held
against each other, once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import paddle.distributed as dist
from paddle import Tensor

from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.topology import Topology

_RELATIVE = 0.02
_ABSOLUTE = 1e-3
"""Of the largest norm. A gradient that is all rounding error differs more."""


@dataclasses.dataclass(frozen=True)
class RankView:
    """What a rank tells the others."""

    norms: Mapping[str, float]
    """Key -> norm of the whole tensor, where this rank has a gradient."""

    group: tuple[int, ...] = ()
    """Ranks that share slices of this rank's dense tensors (V2), by number."""

    dense: tuple[str, ...] = ()
    """Keys of those tensors in the order in which the group sums them."""

    has_experts: bool = False
    """Some of its tensors are marked as experts."""


def compare_with_other_ranks(
    keys: Sequence[str],
    layout: Sequence[TensorLayout],
    topology: Topology | None,
    squared_norm: Tensor,
) -> None:
    """Hold this step's norms against other ranks'; waits for the device.

    Every rank has to call it. Without fleet nothing tells what ranks share, and
    nothing is compared.

    Args:
        keys: Of all tensors.
        layout: Of all tensors; empty for a clip that is not bound.
        topology: This rank's place.
        squared_norm: Of the whole tensors, float32 ``[num_tensors]``.

    Raises:
        RuntimeError: See :func:`compare`.
    """
    if topology is None or topology.world is None or not dist.is_initialized():
        return
    is_sliced = topology.splits_parameters and topology.sharding.size > 1
    dense = tuple(tensor.key for tensor in layout if not tensor.is_expert)
    norms = np.sqrt(squared_norm.numpy())
    view = RankView(
        norms={
            key: float(norm)
            for key, norm in zip(keys, norms, strict=True)
            if norm > 0 and math.isfinite(norm)
        },
        group=tuple(topology.sharding.group.ranks) if is_sliced else (),
        dense=dense if is_sliced else (),
        has_experts=len(dense) < len(layout),
    )
    views: list[RankView] = []
    dist.all_gather_object(views, view)
    compare(views, topology.expert.size)


def compare(views: Sequence[RankView], num_expert_ranks: int) -> None:
    """Hold the views against each other.

    Args:
        views: By rank.
        num_expert_ranks: Ranks that own different experts; 1 without EP.

    Raises:
        RuntimeError: Ranks disagree about a norm; ranks that share slices hold
            different tensors; or no tensor is marked as an expert under EP.
    """
    _compare_slices(views)
    if num_expert_ranks > 1 and not any(view.has_experts for view in views):
        raise RuntimeError(
            f"fleet has {num_expert_ranks} expert-parallel ranks (ep_degree), "
            "and no rank has a tensor with an expert's mark: fleet averages "
            "the gradients of different experts. Mark them before bind(): "
            "parameter.expert = parameter.no_sync = True; parameter.color = "
            "{'color': 'moe_expert', 'group': GROUP}"
        )
    _compare_norms(views)


def _compare_slices(views: Sequence[RankView]) -> None:
    known: dict[tuple[int, ...], tuple[int, tuple[str, ...]]] = {}
    for rank, view in enumerate(views):
        first, dense = known.setdefault(view.group, (rank, view.dense))
        if not view.group or view.dense == dense:
            continue
        mine, other = (
            next((k for k in a if k not in b), "none")
            for a, b in ((view.dense, set(dense)), (dense, set(view.dense)))
        )
        raise RuntimeError(
            f"ranks {first} and {rank} share slices of the same tensors "
            f"(sharding V2), but have different ones: {other!r} and {mine!r}. "
            "Are those experts without an expert's mark (no_sync, expert, "
            "color)?"
        )


def _compare_norms(views: Sequence[RankView]) -> None:
    largest = max(max(v.norms.values(), default=0.0) for v in views)
    known: dict[str, tuple[int, float]] = {}
    for rank, view in enumerate(views):
        for key, norm in view.norms.items():
            first, expected = known.setdefault(key, (rank, norm))
            if not math.isclose(
                norm,
                expected,
                rel_tol=_RELATIVE,
                abs_tol=_ABSOLUTE * largest,
            ):
                raise RuntimeError(
                    f"ranks {first} and {rank} disagree about the norm of "
                    f"{key!r}'s gradient, {expected:.6g} and {norm:.6g}: were "
                    "the gradients of replicated tensors averaged "
                    "(fleet.distributed_model, hooks of sequence parallelism), "
                    "was bind() given this run's model, and do experts have "
                    "their global numbers in their names?"
                )
