# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A decoder whose parameters lie on a mesh of auto-parallel."""

import paddle.distributed as dist
from paddle import nn

from paddle_adagc.lab.models.shards import split_axis


def spread_over_mesh(model: nn.Layer, mesh: dist.ProcessMesh) -> None:
    """Replace a decoder's parameters by distributed ones, in place.

    Args:
        model: Decoder in one piece, with the same weights on every process.
        mesh: The processes. Its dimension ``"mp"`` splits matrices, as tensor
            parallelism does; on the others parameters are replicated.
    """
    for prefix, layer in model.named_sublayers(include_self=True):
        for name, parameter in [*layer._parameters.items()]:
            if parameter is None:
                continue
            axis = split_axis(f"{prefix}.{name}")
            placements = [
                dist.Shard(axis)
                if dimension == "mp" and axis is not None
                else dist.Replicate()
                for dimension in mesh.dim_names
            ]
            placed = dist.shard_tensor(parameter, mesh, placements)
            setattr(layer, name, placed)
