# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Refusals: runs on several ranks of which a clip knows too little.

Experts differ from rank to rank, and a clip that takes them for copies gives
every rank another global norm.
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle.distributed as dist
from paddle import Tensor
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2 as stage_2,
)

from paddle_adagc.parallel.callers import is_called_by
from paddle_adagc.parallel.layout import TensorLayout, is_expert
from paddle_adagc.parallel.topology import Topology


def check_unbound(
    owner: str, topology: Topology | None, parameters: Sequence[Tensor] = ()
) -> None:
    """Refuse a clip without a bound model where the layout matters.

    Args:
        owner: The clip's class, for the message.
        topology: This rank's place, if fleet was started.
        parameters: Those that the clip is given.

    Raises:
        RuntimeError: No rank holds the whole model, or some of the parameters
            are experts of one rank among several.
    """
    splits_model = topology is not None and topology.splits_model
    if splits_model or (
        _on_several_ranks(topology) and any(map(is_expert, parameters))
    ):
        raise RuntimeError(
            f"{owner} needs to know the model in a hybrid-parallel run: call "
            "clip.bind(model) before fleet.distributed_optimizer(optimizer)"
        )


def check_alone(layout: Sequence[TensorLayout]) -> None:
    """Refuse experts on ranks whose axes fleet does not tell.

    Raises:
        RuntimeError: There are experts, and several ranks.
    """
    experts = [tensor.key for tensor in layout if tensor.is_expert]
    if experts and _on_several_ranks(None):
        raise RuntimeError(
            f"{len(experts)} expert tensors ({experts[0]}, ...) on "
            f"{dist.get_world_size()} ranks without fleet: call "
            "fleet.init(is_collective=True, strategy=...) before the first step"
        )


def refuse_unknown_owners(owner: str, topology: Topology | None) -> None:
    """Refuse a step of sharding stage 2 whose group the clip does not know.

    Each rank is then given other tensors, which looks like data parallelism.

    Args:
        owner: The clip's class, for the message.
        topology: Fleet's, whose sharding axis stage 2 may use.

    Raises:
        RuntimeError: The optimizer that calls is stage 2's, without fleet.
    """
    if topology is not None and topology.sharding.size > 1:
        return
    if is_called_by(stage_2.GroupShardedOptimizerStage2.step):
        raise RuntimeError(
            f"{owner} needs to know the ranks of sharding stage 2: call "
            "clip.bind(model) with the model that group_sharded_parallel "
            "returned"
        )


def _on_several_ranks(topology: Topology | None) -> bool:
    if topology is None:
        return dist.get_world_size() > 1
    return topology.world is not None
