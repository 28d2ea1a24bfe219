# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's view of the other ranks: what the model and fleet say about them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2 as stage_2,
)

from paddle_adagc.kernels import cuda
from paddle_adagc.parallel.agreement import RankView, compare
from paddle_adagc.parallel.layout import (
    FusedBuffers,
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

logger = logging.getLogger(__name__)


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
        if model is None:
            return
        layout = read_layout(model)
        self.meshes = Meshes(layout.values())
        wrapper = sharding_wrapper(model)
        if wrapper is not None:
            self._group_sharded = with_wrapper(read_topology(), wrapper)
        topology = self.topology()
        if topology.fuses_parameters:
            self.buffers = FusedBuffers(model.parameters())
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
