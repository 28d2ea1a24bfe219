# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip knows of the ranks that hold parts of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import paddle
from paddle import Tensor

from paddle_adagc.clips.tensor_table import TensorTable
from paddle_adagc.parallel.agreement import compare_with_other_ranks
from paddle_adagc.parallel.auto import Meshes
from paddle_adagc.parallel.fused import FusedBuffers
from paddle_adagc.parallel.layout import TensorLayout, sharding_wrapper
from paddle_adagc.parallel.reduce import Reducer, make_plan
from paddle_adagc.parallel.topology import (
    Topology,
    read_topology,
    with_wrapper,
)
from paddle_adagc.parallel.unbound import (
    check_alone,
    check_unbound,
    refuse_unknown_owners,
)

Pairs = list[tuple[Tensor, Tensor]]
"""Parameters and gradients."""


class OtherRanks:
    """Finds this rank's gradients and the ranks to sum their norms over.

    Args:
        owner: The clip's class, for messages.
        model: What the clip is bound to, if it is.
        layout: The model's tensors.
    """

    def __init__(
        self,
        owner: str,
        model: paddle.nn.Layer | None = None,
        layout: Iterable[TensorLayout] = (),
    ) -> None:
        self._owner = owner
        self.meshes = Meshes(layout)  # of auto-parallel
        self._group_sharded: Topology | None = None  # stages 2 and 3
        self._buffers: FusedBuffers | None = None
        self._reducer: Reducer | None = None  # known from the first step on
        self._has_compared = False
        if model is None:
            return
        wrapper = sharding_wrapper(model)
        if wrapper is not None:
            self._group_sharded = with_wrapper(read_topology(), wrapper)
        topology = self.topology()
        if topology is not None and topology.fuses_parameters:
            self._buffers = FusedBuffers(model.parameters())

    def topology(self) -> Topology | None:
        """Return this rank's place under fleet or a stage that wraps the model.

        Raises:
            RuntimeError: An unknown sharding stage 2 splits the tensors.
        """
        if self._group_sharded is not None:
            return self._group_sharded
        topology = read_topology()
        refuse_unknown_owners(self._owner, topology)
        return topology

    def reducer(self, table: TensorTable) -> Reducer:
        """Look up, once, which ranks each tensor's norm is summed over."""
        if self.meshes:
            return self.meshes.reducer(len(table))
        if self._reducer is None:
            topology = self.topology()
            if not table.is_bound:
                check_unbound(self._owner, topology)
            elif topology is None:
                check_alone(table.layout)
            self._reducer = Reducer(
                make_plan(table.layout, topology)
                if topology is not None and table.is_bound
                else None
            )
        return self._reducer

    def unfold(self, pairs: Pairs, table: TensorTable) -> Pairs:
        """Replace fused buffers by the tensors in them."""
        if self._buffers is None:
            return pairs
        return self._buffers.unfold(pairs, table)

    def compare_once(self, table: TensorTable, squared_norm: Tensor) -> None:
        """Notice gradients that were not averaged; one step waits for it."""
        if self._has_compared or self.meshes:
            return
        self._has_compared = True
        compare_with_other_ranks(
            table.keys, table.layout, self.topology(), squared_norm
        )

    def check_unbound(self, parameters: Sequence[Tensor]) -> None:
        """Refuse parameters that need :meth:`TensorScalingClip.bind`."""
        check_unbound(self._owner, read_topology(), parameters)
