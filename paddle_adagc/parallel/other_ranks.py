# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's view of the other ranks: what the model and fleet say about them."""

from __future__ import annotations

from collections.abc import Sequence

import paddle
from paddle import Tensor

from paddle_adagc.parallel.agreement import (
    agree_on_kernels,
    check_alone,
    check_unbound,
    compare_with_other_ranks,
    refuse_unknown_owners,
)
from paddle_adagc.parallel.layout import (
    FusedBuffers,
    TensorLayout,
    read_layout,
    refuse_shuffled,
    sharding_wrapper,
    shuffling_layers,
    with_units,
)
from paddle_adagc.parallel.reduce import (
    Meshes,
    Reducer,
    check_layout,
    make_plan,
)
from paddle_adagc.parallel.topology import Topology, read_topology, with_wrapper
from paddle_adagc.parallel.units import Declared


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
        self.buffers: FusedBuffers | None = None  # that join tensors
        self.has_agreed = self.has_compared = False
        if model is not None:
            self._look_at(model, units)

    def _look_at(self, model: paddle.nn.Layer, units: Declared | None) -> None:
        layout = read_layout(model)
        self.meshes = Meshes(layout.values())
        wrapper = sharding_wrapper(model)
        if wrapper is not None:
            self._group_sharded = with_wrapper(read_topology(), wrapper)
        topology = self.topology()
        if topology is not None and topology.fuses_parameters:
            self.buffers = FusedBuffers(model.parameters())
        self.layout = with_units(layout, model, units, topology)
        self._shuffling = shuffling_layers(model)
        self.refuse_shuffled()
        if topology is not None and not self.meshes:
            check_layout([*self.layout.values()], topology)

    def refuse_shuffled(self) -> None:
        """Refuse units of a layer that interleaves them now."""
        refuse_shuffled(self._shuffling)

    def use_meshes(self) -> Meshes:
        """Forget the sums of tensors that lay on no mesh."""
        self.reducer = None
        return self.meshes

    def topology(self) -> Topology | None:
        """Return this rank's place under fleet or a stage that wraps the model.

        An unknown sharding stage 2, which splits the tensors, is refused.
        """
        if self._group_sharded is not None:
            return self._group_sharded
        topology = read_topology()
        refuse_unknown_owners(self._owner, topology)
        return topology

    def find_reducer(
        self, layout: Sequence[TensorLayout] | None, num_tensors: int
    ) -> Reducer:
        """Look up which ranks each tensor's norm is summed over.

        ``layout`` is of all tensors; None for a clip that is not bound.
        """
        if self.meshes:  # which a step may find to be others
            return self.meshes.reducer(num_tensors)
        topology, plan = self.topology(), None
        if layout is None:
            check_unbound(self._owner, topology)
        elif topology is None:
            check_alone(layout)
        else:
            plan = make_plan(layout, topology)
        self.reducer = Reducer(plan, topology and topology.world)
        return self.reducer

    def agree(self) -> None:
        """Use the same kernels as the other ranks; on GPUs a step waits."""
        self.has_agreed = True
        agree_on_kernels(self.topology())

    def compare(
        self,
        keys: Sequence[str],
        layout: Sequence[TensorLayout],
        squared_norm: Tensor,
    ) -> None:
        """Notice gradients that were not averaged; one step waits for it."""
        if not self.meshes:
            self.has_compared = True
            compare_with_other_ranks(
                keys, layout, self.topology(), squared_norm
            )

    def check_unbound(self, parameters: Sequence[Tensor]) -> None:
        """Refuse parameters of which the ranks have to know the model."""
        check_unbound(self._owner, read_topology(), parameters)
