# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The decoder on fleet's ranks: their number, sharing, what is refused."""

from paddle import Tensor
from paddle.distributed.fleet.layers.mpu import mp_ops

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
    check_degrees(config, degree)


def check_degrees(config: DecoderConfig, tp: int, ep: int = 1) -> None:
    """Refuse ranks that cannot share widths or experts evenly."""
    for name in _SHARED_WIDTHS:
        if getattr(config, name) % tp:
            raise ValueError(
                f"{name}={getattr(config, name)} is not a multiple of the "
                f"{tp} tensor-parallel ranks: change one of them."
            )
    if ep > 1 and (not config.moe_num_experts or config.moe_num_experts % ep):
        raise ValueError(
            f"moe_num_experts={config.moe_num_experts} is not a multiple of "
            f"the {ep} expert-parallel ranks: change one of them."
        )
