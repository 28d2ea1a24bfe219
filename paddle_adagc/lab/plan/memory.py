# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A rank's GPU memory: weights, gradients, optimizer states."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from types import SimpleNamespace

from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import (
    dygraph_sharding_optimizer,
)

from paddle_adagc.lab.train.config import ParallelConfig, RunConfig
from paddle_adagc.parallel.layout import TensorLayout

GRADIENT_BYTES = 4
"""Gradients are float32 under every precision (``amp_master_grad``)."""

_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 2}
_MASTER_BYTES = {"float32": 0, "bfloat16": 4, "float16": 4, "float8": 4}
_STATE_BYTES = {"adamw": 8, "lion": 4, "muon": 8}
_MUON_MATRIX_BYTES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one rank."""

    weights: int
    """float32, or bfloat16 or float16 (under float8, too)."""

    gradients: int
    """float32, of all tensors of the rank: sharding stage 1 splits them only
    once they are summed."""

    optimizer: int
    """float32 moments and master weights, of this rank's share."""

    activations: int
    """See :mod:`paddle_adagc.lab.models.activations`."""

    @property
    def total(self) -> int:
        """Bytes of all four."""
        return sum(dataclasses.astuple(self))


def num_values(tensors: Sequence[TensorLayout]) -> int:
    """Count the trained values."""
    return sum(math.prod(tensor.shape) for tensor in tensors)


def optimizer_share(
    tensors: Sequence[TensorLayout], parallel: ParallelConfig
) -> list[tuple[TensorLayout, int]]:
    """Return a rank's tensors with the number of values that it optimizes.

    Sharding V2 gives every rank a slice of every tensor: over the sharding
    group, or for experts under expert parallelism over the ranks that hold the
    same experts. V1 gives whole tensors to ranks, as fleet does; the result is
    the share of the rank with the most values.
    """
    if parallel.sharding == 1:
        return [(t, math.prod(t.shape)) for t in tensors]
    if parallel.sharding_split_param:
        return [
            (t, math.ceil(math.prod(t.shape) / _num_sharers(t, parallel)))
            for t in tensors
        ]
    owned = dygraph_sharding_optimizer.DygraphShardingOptimizer
    dealt = owned._partition_parameters(
        SimpleNamespace(
            _parameter_list=tensors, _sharding_world_size=parallel.sharding
        )
    )
    return [
        (t, math.prod(t.shape)) for t in max(dealt.values(), key=num_values)
    ]


def rank_memory(
    tensors: Sequence[TensorLayout],
    matrices: Collection[str],
    config: RunConfig,
    activations: int,
) -> Memory:
    """Return the memory of a rank.

    Args:
        tensors: The rank's tensors before sharding.
        matrices: Keys of the tensors that Muon trains itself.
        config: The run.
        activations: Bytes of activations, see
            :meth:`.PretrainTask.activation_bytes`.
    """
    precision, values = config.train.precision, num_values(tensors)
    name = config.optimizer.name
    optimizer = 0
    for tensor, share in optimizer_share(tensors, config.parallel):
        state = _STATE_BYTES[name]
        if name == "muon" and tensor.key in matrices:
            state = _MUON_MATRIX_BYTES
        optimizer += share * (state + _MASTER_BYTES[precision])
    return Memory(
        weights=values * _WEIGHT_BYTES[precision],
        gradients=values * GRADIENT_BYTES,
        optimizer=optimizer,
        activations=activations,
    )


def clipped_bytes(
    tensors: Sequence[TensorLayout], parallel: ParallelConfig
) -> int:
    """Bytes of the gradients that a rank's clip is given."""
    shares = optimizer_share(tensors, parallel)
    return GRADIENT_BYTES * sum(share for _, share in shares)


def _num_sharers(tensor: TensorLayout, parallel: ParallelConfig) -> int:
    return parallel.moe_sharding if tensor.is_expert else parallel.sharding
