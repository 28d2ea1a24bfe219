# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
