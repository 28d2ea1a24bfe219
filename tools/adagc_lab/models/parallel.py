# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The decoder on fleet's ranks: their number, sharing, what is refused."""

from paddle import Tensor
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.utils.sequence_parallel_utils import (
    GatherOp,
    ScatterOp,
)

from adagc_lab.models.config import DecoderConfig
from paddle_adagc.parallel.topology import Topology, read_topology

_SHARED_WIDTHS = (
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "moe_intermediate_size",
)


def topology() -> Topology:
    """Return this process's place; without `fleet.init` it is alone."""
    return read_topology()


def enter_tensor_parallel(x: Tensor) -> Tensor:
    """Mark where a tensor that all TP ranks hold meets their split ones.

    Forward it is `x`; backward each rank has the gradient of its own share
    of the work, and their sum over the model-parallel group is the gradient.
    """
    axis = topology().model
    return x if axis.size == 1 else mp_ops._c_identity(x, group=axis.group)


def uses_sequence_parallel(config: DecoderConfig) -> bool:
    """Whether activations between blocks are split along the sequence."""
    return bool(config.sequence_parallel) and topology().model.size > 1


def split_sequence(x: Tensor) -> Tensor:
    """Map [batch, length, hidden] to [length / ranks, batch, hidden].

    All TP ranks hold the same; each keeps its share of the positions.
    """
    return split_rows(x.transpose([1, 0, 2]).contiguous())


def whole_sequence(x: Tensor) -> Tensor:
    """Undo `split_sequence`: every TP rank gets all positions.

    What follows must be the same computation on every TP rank: the gradient
    of this rank's positions is taken as it is, not summed over the ranks.
    """
    return whole_rows(x).transpose([1, 0, 2]).contiguous()


def split_rows(x: Tensor) -> Tensor:
    """Keep this TP rank's share of the rows; the gradient is gathered."""
    degree = topology().model.size
    if x.shape[0] % degree:
        raise ValueError(
            f"{x.shape[0]} tokens of a sequence, or of a micro-batch with "
            f"experts: use a multiple of the {degree} tensor-parallel ranks "
            "that share them."
        )
    return ScatterOp.apply(x)


def whole_rows(x: Tensor) -> Tensor:
    """Undo `split_rows`; what follows is as after `whole_sequence`."""
    return GatherOp.apply(x)


def check_parallel(config: DecoderConfig) -> None:
    """Refuse fleet's layout if the decoder cannot be spread over it."""
    place = topology()
    degree = place.model.size
    if max(config.tensor_parallel_degree, 1) > degree:
        raise ValueError(
            f"tensor_parallel_degree={config.tensor_parallel_degree} and "
            f"fleet's model-parallel group has {degree} ranks: call "
            "fleet.init with mp_degree first."
        )
    check_degrees(config, degree, place.expert.size)


def check_degrees(config: DecoderConfig, tp: int, ep: int) -> None:
    """Refuse ranks that cannot share widths or experts evenly."""
    for name in _SHARED_WIDTHS:
        if getattr(config, name) % tp:
            raise ValueError(
                f"{name}={getattr(config, name)} is not a multiple of the "
                f"{tp} tensor-parallel ranks: change one of them."
            )
    if config.moe_num_experts == 0 or ep == 1:
        return
    if config.moe_num_experts % ep:
        raise ValueError(
            f"moe_num_experts={config.moe_num_experts} is not a multiple of "
            f"the {ep} expert-parallel ranks: change one of them."
        )
