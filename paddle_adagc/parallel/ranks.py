# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's view of the ranks: what lies here, and whose norms are summed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor

from paddle_adagc import kernels
from paddle_adagc.paddle_internals import is_in_stage_2
from paddle_adagc.parallel import agreement
from paddle_adagc.parallel.layout import (
    TensorLayout,
    is_expert,
    read_layout,
    sharding_wrapper,
    with_units,
)
from paddle_adagc.parallel.meshes import Meshes
from paddle_adagc.parallel.reduce import Reducer, check_layout, make_reducer
from paddle_adagc.parallel.topology import Topology, read_topology, with_wrapper
from paddle_adagc.parallel.units import Declared


class Ranks:
    """Finds the ranks to sum this rank's norms over.

    See ``bind()`` for the model's errors.
    """

    def __init__(
        self,
        model: paddle.nn.Layer | None = None,
        units: Declared | None = None,
    ) -> None:
        self._group_sharded: Topology | None = None  # stages 2 and 3
        self.reducer: Reducer | None = None  # known from the first step on
        self.layout: dict[str, TensorLayout] = {}  # by parameter's name
        self.meshes = Meshes()  # of auto-parallel
        self.in_buffers: dict[str, Tensor] = {}  # parameters, by their names
        self.has_agreed = self._was_alone = False
        self.compared_step: int | None = None
        if model is None:
            return
        layout = read_layout(model)
        wrapper = sharding_wrapper(model)
        if wrapper is not None:
            self._group_sharded = with_wrapper(read_topology(), wrapper)
        topology = self.topology()
        self._was_alone = topology.world is None  # when it was bound
        if topology.fuses_parameters:
            self.in_buffers = {p.name: p for p in model.parameters()}
        self.layout = with_units(layout, model, units, topology)
        self.meshes = Meshes(  # by the index of tensors, units among them
            tensor
            for tensor in self.layout.values()
            for _ in tensor.units or (tensor,)
        )
        if not self.meshes:
            check_layout([*self.layout.values()], topology)

    def __getstate__(self) -> dict[str, Any]:
        # Groups of ranks cannot be pickled; the next step finds fleet's again.
        # With those of stages 2 and 3, and of meshes, a clip cannot be copied.
        return {**vars(self), "reducer": None}

    def topology(self) -> Topology:
        """Return this rank's place under fleet or a stage that wraps the model.

        An unknown sharding stage 2, which splits the tensors, is refused.
        """
        if self._group_sharded is not None:
            return self._group_sharded
        topology = read_topology()
        if topology.sharding.size == 1 and is_in_stage_2():
            raise RuntimeError(
                "ClipGradByAdaGC needs to know the ranks of sharding stage 2: "
                "call clip.bind(model) with the model that "
                "group_sharded_parallel returned"
            )
        return topology

    def find_reducer(
        self, layout: Sequence[TensorLayout] | None, num_tensors: int
    ) -> Reducer:
        """Look up which ranks each tensor's norm is summed over, once.

        ``layout`` is of all tensors; None for a clip that is not bound.
        """
        if self.reducer is not None:
            return self.reducer
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
        elif experts and self._was_alone and topology.world is not None:
            raise RuntimeError(
                f"bind() came before fleet.init(): {experts[0]} has the "
                "same name on all ranks: call it after"
            )
        self.reducer = make_reducer(layout or (), topology)
        return self.reducer

    def hold_parts(self, layout: Iterable[TensorLayout]) -> bool:
        """Whether ranks may hold other tensors: stages, experts."""
        if dist.get_world_size() == 1:
            return False
        has_experts = any(tensor.is_expert for tensor in layout)
        return has_experts or read_topology().pipe.size > 1

    def check_unbound(self, parameters: Sequence[Tensor] = ()) -> None:
        """Refuse an unbound clip where ranks hold parts of a model, or experts.

        Experts are looked for among ``parameters``.
        """
        has_others = dist.get_world_size() > 1
        if read_topology().splits_model or (
            has_others and any(map(is_expert, parameters))
        ):
            raise RuntimeError(
                "ClipGradByAdaGC needs to know the model in a hybrid-parallel "
                "run: call clip.bind(model) before "
                "fleet.distributed_optimizer(optimizer)"
            )

    def agree_once(
        self, settings: Mapping[str, Any], error: Exception | None = None
    ) -> None:
        """Compare settings with all ranks, and whether kernels can be used.

        A step waits for the others here. Sums of kernels and of Paddle's
        operators differ in their last bits: copies of a tensor on ranks with
        different ones would drift apart.

        ``error``: Why this rank makes no step; the others then raise, too.
        """
        if self.topology().world is None and not self.meshes:
            self.has_agreed = True
            return
        failed = "" if error is None else f"{type(error).__name__}: {error}"
        views = agreement.of_all_ranks((settings, kernels.why_not(), failed))
        for rank, (*_, failed) in enumerate(views):
            if failed and error is None:
                raise RuntimeError(f"rank {rank} cannot clip: {failed}")
        if error is not None:
            return
        agreement.compare_settings([view[0] for view in views])
        reasons = [why for _, why, _ in views]
        without = [i for i, why in enumerate(reasons) if why]
        if 0 < len(without) < len(reasons):
            raise RuntimeError(
                f"{len(without)} of {len(reasons)} ranks cannot use the "
                f"kernels (rank {without[0]}: {reasons[without[0]]}), and the "
                "others do, so that their sums differ in the last bits: make "
                "them usable there, or set PADDLE_ADAGC_NATIVE=0 on all ranks"
            )
        self.has_agreed = True

    def compare(
        self,
        keys: Sequence[str],
        layout: Sequence[TensorLayout],
        squared_norm: Tensor,
    ) -> None:
        """Notice gradients that were not averaged; one step waits for it.

        All calls of the first step that comes here do. ``squared_norm``,
        float32 ``[num_tensors]``, is of the whole tensors; without ``bind`` the
        layout is empty.
        """
        topology = self.topology()
        if topology.world is None or self.meshes:
            return
        is_sliced = topology.splits_parameters and topology.sharding.size > 1
        dense = tuple(tensor.key for tensor in layout if not tensor.is_expert)
        norms = zip(keys, np.sqrt(squared_norm.numpy()).tolist(), strict=True)
        view = agreement.RankView(
            norms={key: x for key, x in norms if x > 0 and math.isfinite(x)},
            group=tuple(topology.sharding.group.ranks) if is_sliced else (),
            dense=dense if is_sliced else (),
            has_experts=len(dense) < len(layout),
        )
        views = agreement.of_all_ranks(view)
        agreement.compare(views, topology.expert.size)
