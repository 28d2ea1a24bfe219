# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Auto-parallel's reshard where CPU lacks the operator."""

from typing import Any

from paddle import Tensor
from paddle import distributed as dist
from paddle.base import core

from paddle_adagc.lab.gloo.patch import Patch

_native_reshard = core.reshard


def reshard(tensor: Tensor, dist_attr: Any) -> Tensor:
    """Reshard; ``Partial`` to ``Shard`` by an all-reduce and a slice."""
    split_axes = {
        axis for axes in dist_attr.multi_dims_mapping for axis in axes
    }
    placements = [
        dist.Replicate() if p.is_partial() and axis in split_axes else p
        for axis, p in enumerate(tensor.placements)
    ]
    if placements != tensor.placements:
        tensor = dist.reshard(tensor, tensor.process_mesh, placements)
    return _native_reshard(tensor, dist_attr)


PATCHES = (
    Patch(core, "reshard", reshard, "CReduceScatterOp has no CPU kernel"),
)
