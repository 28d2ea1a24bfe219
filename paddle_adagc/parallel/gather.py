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
"""One state for all ranks, that any other parallel layout can load."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import paddle.distributed as dist

from paddle_adagc.state import ClipState, Quantity, merge


def gather_state(
    state: ClipState,
    observed: Collection[str],
    quantities: Sequence[Quantity],
) -> ClipState:
    """Merge all ranks' states; every rank has to call it.

    Args:
        state: This rank's.
        observed: Keys whose gradients this rank has met.
        quantities: Quantities that the clip keeps.

    Returns:
        The merged state, the same on every rank; on one process its own.

    Raises:
        RuntimeError: Ranks disagree about a number that they all follow.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return state
    parts: list[tuple[ClipState, Collection[str]]] = []
    dist.all_gather_object(parts, (state.to_numpy(), observed))
    return merge(parts, quantities)
