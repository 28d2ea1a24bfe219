# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A rank's part of the decoder in a parallel layout; allocates nothing."""

import math
import re
from typing import NamedTuple

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.experts import expert_rank
from paddle_adagc.lab.models.parallel import check_degrees
from paddle_adagc.lab.models.pipeline import stage_bounds
from paddle_adagc.lab.models.sizes import Shape, parameter_shapes

_SPLIT_IN_ROWS = re.compile(r"\.(embed_tokens|o_proj|down_proj)\.weight$")
_SPLIT_IN_COLUMNS = re.compile(
    r"(\.[qkv]_proj|\.gate_proj|\.up_proj|lm_head)\.weight$"
)
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_EMBEDDING = "model.embed_tokens."


class Degrees(NamedTuple):
    """Number of ranks that share the model along each axis."""

    tp: int = 1
    pp: int = 1
    ep: int = 1


class ShardSize(NamedTuple):
    """Counts of what one tensor-parallel rank holds."""

    stage: int
    """Pipeline stage, from 0."""

    expert_ranks: tuple[int, ...]
    """Expert-parallel ranks that hold as much as each other."""

    num_layers: int
    num_tensors: int
    num_parameters: int


def split_axis(key: str) -> int | None:
    """Return the axis along which tensor-parallel ranks split a parameter.

    Under expert parallelism they do not split experts.

    Args:
        key: Name in the whole model.

    Returns:
        0 or 1; None: every rank holds all of it (norms and routers).
    """
    if _SPLIT_IN_ROWS.search(key):
        return 0
    return 1 if _SPLIT_IN_COLUMNS.search(key) else None


def stage_of(key: str, config: DecoderConfig, num_stages: int) -> list[int]:
    """Return the pipeline stages that hold a parameter.

    Args:
        key: Name in the whole model.
        config: The decoder's config.
        num_stages: Pipeline stages.

    Returns:
        One stage; the first and the last for an embedding that the head
        shares.
    """
    last = num_stages - 1
    if key.startswith(_EMBEDDING):
        is_shared = config.tie_word_embeddings and last > 0
        return [0, last] if is_shared else [0]
    layer = _LAYER.match(key)
    if layer is None:
        return [last]
    index = int(layer[1]) + 1  # the embedding comes first
    bounds = stage_bounds(config.num_hidden_layers, num_stages)
    return [sum(index >= bound for bound in bounds[1:-1])]


def local_shapes(
    config: DecoderConfig,
    degrees: Degrees,
    *,
    stage: int = 0,
    expert_parallel_rank: int = 0,
) -> dict[str, Shape]:
    """Return name and shape of every parameter that a rank holds.

    Tensor-parallel ranks hold equal shapes, data-parallel ranks the same
    tensors. Sharding splits the optimizer's states further, not the
    parameters.

    Args:
        config: The decoder's config.
        degrees: Ranks along the layout's axes.
        stage: The rank's pipeline stage.
        expert_parallel_rank: The rank's place in its expert group.

    Returns:
        In the order of :func:`~paddle_adagc.lab.models.sizes.parameter_shapes`.

    Raises:
        ValueError: The decoder cannot be spread over these ranks.
    """
    check_degrees(config, degrees.tp, degrees.ep)
    held = {}
    for key, shape in parameter_shapes(config).items():
        if stage not in stage_of(key, config, degrees.pp):
            continue
        expert = _EXPERT.search(key)
        if expert is not None and expert_parallel_rank != expert_rank(
            int(expert[1]), config.moe_num_experts, degrees.ep
        ):
            continue
        is_whole = expert is not None and degrees.ep > 1
        held[key] = shape if is_whole else _part(shape, key, degrees.tp)
    return held


def shard_sizes(config: DecoderConfig, degrees: Degrees) -> list[ShardSize]:
    """Count what the ranks of every pipeline stage hold.

    Raises:
        ValueError: The decoder cannot be spread over these ranks.
    """
    sizes = []
    for stage in range(degrees.pp):
        ranks_by_counts: dict[tuple[int, int, int], list[int]] = {}
        for rank in range(degrees.ep):
            shapes = local_shapes(
                config, degrees, stage=stage, expert_parallel_rank=rank
            )
            layers = {
                match[1] for key in shapes if (match := _LAYER.match(key))
            }
            size = sum(map(math.prod, shapes.values()))
            counts = (len(layers), len(shapes), size)
            ranks_by_counts.setdefault(counts, []).append(rank)
        sizes += [
            ShardSize(stage, tuple(ranks), *counts)
            for counts, ranks in ranks_by_counts.items()
        ]
    return sizes


def _part(shape: Shape, key: str, tp: int) -> Shape:
    axis = split_axis(key)
    return tuple(
        size // tp if index == axis else size
        for index, size in enumerate(shape)
    )
