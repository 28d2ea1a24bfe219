# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a decoder under fleet's parallel layouts must satisfy."""

from paddle import Tensor

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.layers import tensor_parallel_degree
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
    return read_topology() or Topology()


def check_length(input_ids: Tensor, config: DecoderConfig) -> None:
    """Refuse sequences that the model has no positions for.

    Raises:
        ValueError: Longer than `max_position_embeddings`.
    """
    length, longest = input_ids.shape[1], config.max_position_embeddings
    if length > longest:
        raise ValueError(
            f"input_ids holds sequences of {length} tokens and "
            f"max_position_embeddings={longest}: shorten them or raise it."
        )


def check_parallel(config: DecoderConfig) -> None:
    """Refuse layouts that the decoder cannot be spread over.

    Raises:
        ValueError: See :func:`check_degrees`; degrees that fleet was not
            started with.
    """
    degree = tensor_parallel_degree()
    if max(config.tensor_parallel_degree, 1) > degree:
        raise ValueError(
            f"tensor_parallel_degree={config.tensor_parallel_degree} and "
            f"fleet's model-parallel group has {degree} ranks: call "
            "fleet.init with mp_degree first."
        )
    check_degrees(config, degree, topology().expert.size)


def check_degrees(config: DecoderConfig, tp: int, ep: int) -> None:
    """Refuse degrees that the decoder cannot be spread over.

    Args:
        config: The decoder's config.
        tp: Tensor-parallel ranks.
        ep: Expert-parallel ranks.

    Raises:
        ValueError: Widths that the tensor-parallel ranks, or experts that
            the expert-parallel ranks cannot share evenly; fewer
            expert-parallel than tensor-parallel ranks.
    """
    for name in _SHARED_WIDTHS:
        if getattr(config, name) % tp:
            raise ValueError(
                f"{name}={getattr(config, name)} is not a multiple of the "
                f"{tp} tensor-parallel ranks: change one of them."
            )
    if config.moe_num_experts == 0 or ep == 1:
        return
    if ep % tp:
        raise ValueError(
            f"ep_degree={ep} with mp_degree={tp}: the tensor-parallel ranks "
            "are among those that share the experts, use a multiple of "
            "mp_degree."
        )
    if config.moe_num_experts % ep:
        raise ValueError(
            f"moe_num_experts={config.moe_num_experts} is not a multiple of "
            f"the {ep} expert-parallel ranks: change one of them."
        )
