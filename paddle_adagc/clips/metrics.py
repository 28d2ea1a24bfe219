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
"""The numbers of an optimizer step, for logs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from paddle import Tensor


@dataclasses.dataclass(frozen=True)
class Call:
    """Norms and factors of one call of a clip, still on the device."""

    slots: list[int]
    """Entries of the vectors whose tensors had a gradient."""

    norm: Tensor  # [num_tensors], float32, before the clip
    h: Tensor  # [num_tensors], float32


def step_metrics(
    calls: Sequence[Call],
    keys: Sequence[str],
    per_tensor: Mapping[str, Tensor],
) -> dict[str, Any]:
    """Numbers of the step that ``calls`` make up; waits for the device.

    Args:
        calls: One call, or one per parameter group.
        keys: Key of every tensor.
        per_tensor: Further quantities by name, float32 ``[num_tensors]``.

    Returns:
        ``global_grad_norm``, ``clipped_fraction``, ``nonfinite`` and
        ``tensors``, see :meth:`TensorScalingClip.metrics`.
    """
    slots = [slot for call in calls for slot in call.slots]
    columns = {
        "norm": _gather([(call.norm, call.slots) for call in calls]),
        **{
            name: _gather([(values, slots)])
            for name, values in per_tensor.items()
        },
        "h": _gather([(call.h, call.slots) for call in calls]),
    }
    finite = np.isfinite(columns["norm"])
    known = columns["norm"][finite].astype(np.float64)
    return {
        "global_grad_norm": float(np.sqrt(np.sum(known**2))),
        "clipped_fraction": float(np.mean(columns["h"] < 1)) if slots else 0.0,
        "nonfinite": int(np.sum(~finite)),
        "tensors": {
            keys[slot]: {
                name: float(column[i]) for name, column in columns.items()
            }
            for i, slot in enumerate(slots)
        },
    }


def _gather(parts: list[tuple[Tensor, list[int]]]) -> np.ndarray:
    """The named entries of each vector, one after the other."""
    arrays = [vector.numpy()[slots] for vector, slots in parts]
    return np.concatenate([np.zeros(0, np.float32), *arrays])
