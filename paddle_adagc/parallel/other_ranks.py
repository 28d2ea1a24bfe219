# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's view of the other ranks, and what all have to agree on.

A missing all-reduce over data-parallel ranks, missing hooks of sequence
parallelism, experts without marks or with another rank's names: each leaves
numbers that look right on every single rank. So the norms of one step are held
against each other, once, and every number when states are joined.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2 as stage_2,
)

from paddle_adagc.kernels import cuda
from paddle_adagc.parallel.layout import (
    TensorLayout,
    is_expert,
    read_layout,
    sharding_wrapper,
    shuffling_layers,
    with_units,
)
from paddle_adagc.parallel.reduce import (
    Meshes,
    Reducer,
    check_layout,
    make_reducer,
)
from paddle_adagc.parallel.topology import (
    Topology,
    is_called_by,
    read_topology,
    with_wrapper,
)
from paddle_adagc.parallel.units import Declared
from paddle_adagc.state import GLOBAL, ROUNDING, ClipState, Quantity

logger = logging.getLogger(__name__)

_RELATIVE = 0.02
_ABSOLUTE = 1e-3  # of the largest norm: a gradient may be all rounding error
_OF_A_COUNT = 0.01  # difference of counts between ranks that is still rounding

_CAUSES = (
    "was bind() given this run's model, were the gradients of replicated "
    "tensors averaged (fleet.distributed_model, hooks of sequence "
    "parallelism), and do experts have their global numbers in their names?"
)


class OtherRanks:
    """Finds this rank's gradients and the ranks to sum their norms over.

    ``owner`` is the clip's class. See ``bind()`` for the model's errors.
    """

    def __init__(
        self,
        owner: str,
        model: paddle.nn.Layer | None = None,
        units: Declared | None = None,
    ) -> None:
        self._owner = owner
        self._group_sharded: Topology | None = None  # stages 2 and 3
        self._shuffling: list[tuple[str, paddle.nn.Layer]] = []
        self.reducer: Reducer | None = None  # known from the first step on
        self.layout: dict[str, TensorLayout] = {}  # by parameter's name
        self.meshes = Meshes()  # of auto-parallel
        self.in_buffers: dict[str, Tensor] = {}  # parameters, by their names
        self.has_agreed = self.has_compared = False
        if model is None:
            return
        layout = read_layout(model)
        self.meshes = Meshes(layout.values())
        wrapper = sharding_wrapper(model)
        if wrapper is not None:
            self._group_sharded = with_wrapper(read_topology(), wrapper)
        topology = self.topology()
        if topology.fuses_parameters:
            self.in_buffers = {p.name: p for p in model.parameters()}
        self.layout = with_units(layout, model, units, topology)
        self._shuffling = shuffling_layers(model)
        self.refuse_shuffled()
        if not self.meshes:
            check_layout([*self.layout.values()], topology)

    def refuse_shuffled(self) -> None:
        """Refuse units of a layer that interleaves them now."""
        for name, layer in self._shuffling:
            if layer._weights_layout == "sonic":
                raise ValueError(
                    f"{name} interleaves gate and up now "
                    "(_weights_layout='sonic'), so that units with parts would "
                    "mix them: call its layer's "
                    "convert_weights_to_grouped_layout() before the "
                    "optimizer's step, as PaddleFleet's Trainer does, or give "
                    "units='experts'"
                )

    def use_meshes(self) -> Meshes:
        """Forget the sums of tensors that lay on no mesh."""
        self.reducer = None
        return self.meshes

    def topology(self) -> Topology:
        """Return this rank's place under fleet or a stage that wraps the model.

        An unknown sharding stage 2, which splits the tensors, is refused.
        """
        if self._group_sharded is not None:
            return self._group_sharded
        topology = read_topology()
        if topology.sharding.size == 1 and is_called_by(
            stage_2.GroupShardedOptimizerStage2.step
        ):
            raise RuntimeError(
                f"{self._owner} needs to know the ranks of sharding stage 2: "
                "call clip.bind(model) with the model that "
                "group_sharded_parallel returned"
            )
        return topology

    def find_reducer(
        self, layout: Sequence[TensorLayout] | None, num_tensors: int
    ) -> Reducer:
        """Look up which ranks each tensor's norm is summed over.

        ``layout`` is of all tensors; None for a clip that is not bound.
        """
        if self.meshes:  # which a step may find to be others
            return self.meshes.reducer(num_tensors)
        topology = self.topology()
        experts = [tensor.key for tensor in layout or () if tensor.is_expert]
        if layout is None:
            self.check_unbound()
        elif experts and topology.world is None and dist.get_world_size() > 1:
            raise RuntimeError(
                f"{len(experts)} expert tensors ({experts[0]}, ...) on "
                f"{dist.get_world_size()} ranks without fleet: call fleet.init("
                "is_collective=True, strategy=...) before the first step"
            )
        self.reducer = make_reducer(layout or (), topology)
        return self.reducer

    def check_unbound(self, parameters: Sequence[Tensor] = ()) -> None:
        """Refuse an unbound clip where ranks hold parts of a model, or experts.

        Experts are looked for among ``parameters``.
        """
        has_others = dist.get_world_size() > 1
        if read_topology().splits_model or (
            has_others and any(map(is_expert, parameters))
        ):
            raise RuntimeError(
                f"{self._owner} needs to know the model in a hybrid-parallel "
                "run: call clip.bind(model) before "
                "fleet.distributed_optimizer(optimizer)"
            )

    def agree(self) -> None:
        """Use the CUDA kernels on all ranks, or on none; on GPUs a step waits.

        Sums of kernels and of Paddle's operators differ in their last bits:
        copies of a tensor on ranks with different ones would drift apart.
        """
        self.has_agreed = True
        device = cuda.current_device()
        if device is None or self.topology().world is None:
            return
        reasons: list[str] = []
        dist.all_gather_object(reasons, cuda.why_not(device))
        without = [f"rank {i}: {why}" for i, why in enumerate(reasons) if why]
        if without and not reasons[dist.get_rank()]:
            cuda.leave_to_operators(device, without[0])
            logger.warning(
                "%d of %d ranks cannot use the CUDA kernels (%s): all ranks "
                "use Paddle's operators",
                len(without),
                len(reasons),
                without[0],
            )

    def compare(
        self,
        keys: Sequence[str],
        layout: Sequence[TensorLayout],
        squared_norm: Tensor,
    ) -> None:
        """Notice gradients that were not averaged; one step waits for it.

        ``squared_norm``, float32 ``[num_tensors]``, is of the whole tensors;
        without ``bind`` the layout is empty.
        """
        if self.meshes:
            return
        self.has_compared = True
        topology = self.topology()
        if topology.world is None:
            return
        is_sliced = topology.splits_parameters and topology.sharding.size > 1
        dense = tuple(tensor.key for tensor in layout if not tensor.is_expert)
        norms = zip(keys, np.sqrt(squared_norm.numpy()).tolist(), strict=True)
        view = RankView(
            norms={key: x for key, x in norms if x > 0 and math.isfinite(x)},
            group=tuple(topology.sharding.group.ranks) if is_sliced else (),
            dense=dense if is_sliced else (),
            has_experts=len(dense) < len(layout),
        )
        views: list[RankView] = []
        dist.all_gather_object(views, view)
        compare(views, topology.expert.size)


class RankView(NamedTuple):
    """What a rank tells the others."""

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
            "the gradients of different experts. Mark them before bind(): "
            "parameter.expert = parameter.no_sync = True; parameter.color = "
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


def gather_state(
    state: ClipState,
    observed: Collection[str],
    lost: Mapping[str, int],
    quantities: Sequence[Quantity],
) -> ClipState:
    """Merge all ranks' states; every rank has to call it. See :func:`merge`."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return state
    parts: list[tuple[ClipState, Collection[str], Mapping[str, int]]] = []
    dist.all_gather_object(parts, (state.to_numpy(), observed, lost))
    warn_of_lost([part[1:] for part in parts])
    return merge([part[:2] for part in parts], quantities)


def warn_of_lost(
    parts: Sequence[tuple[Collection[str], Mapping[str, int]]],
) -> None:
    """Name tensors that were Inf or NaN in more steps on some of their ranks.

    ``parts``: keys that a rank has met, and key -> number of such steps.
    """
    for key in sorted({key for _, lost in parts for key in lost}):
        counts = {
            rank: lost.get(key, 0)
            for rank, (observed, lost) in enumerate(parts)
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


def merge(
    parts: Sequence[tuple[ClipState, Collection[str]]],
    quantities: Sequence[Quantity],
) -> ClipState:
    """Join the states of ranks that hold parts of one model.

    ``parts`` are each rank's state (NumPy), and the keys whose gradients it has
    met: under owner-based sharding the other ranks' numbers about a tensor are
    out of date. Without any observation of a tensor its start value stays. A
    RuntimeError names a number that ranks disagree about.
    """
    first = parts[0][0]
    table: dict[str, tuple[dict[str, float], bool]] = {}
    for state, observed in parts:
        columns = {n: v.tolist() for n, v in state.values.items() if v.ndim}
        for i, key in enumerate(state.keys):
            row = {name: column[i] for name, column in columns.items()}
            has_seen = key in observed and all(map(math.isfinite, row.values()))
            if key not in table or (has_seen and not table[key][1]):
                table[key] = (row, has_seen)
            elif has_seen:
                _check_agreement(key, table[key][0], row, quantities)
        for q in (q for q in quantities if q.is_global):
            known, other = (s.values[q.name].item() for s in (first, state))
            _check_agreement(GLOBAL, {q.name: known}, {q.name: other}, [q])
    values = {
        name: np.array([row[name] for row, _ in table.values()], np.float32)
        if value.ndim
        else value
        for name, value in first.values.items()
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
    for quantity in (q for q in quantities if q.name in known):
        mine, theirs = known[quantity.name], other[quantity.name]
        is_count = quantity.absent is not None
        absolute = _OF_A_COUNT if is_count else ROUNDING * size
        if not math.isclose(
            mine, theirs, rel_tol=quantity.tolerance, abs_tol=absolute
        ):
            raise RuntimeError(
                f"ranks disagree about {quantity.name} of {key!r}: {mine} and "
                f"{theirs}; {_CAUSES}"
            )
