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

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import paddle.distributed as dist

_TOLERANCE = {"gamma": 1e-5, "deviation": 1e-2}
_TOLERANCE_OF_GAMMA = 1e-5


def gather_state(
    state: dict[str, Any], observed: Collection[str]
) -> dict[str, Any]:
    """Merge all ranks' states; every rank has to call it.

    Args:
        state: This rank's ``step``, ``config``, and numbers per key under
            every other name.
        observed: Keys whose gradients this rank has met: under owner-based
            sharding the other ranks' gammas of a tensor are out of date.

    Returns:
        The merged state, the same on every rank, numbers as floats; of one
        process: its state.

    Raises:
        RuntimeError: Ranks disagree about a number that they all follow.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return state
    mine = {
        name: {
            key: (float(np.asarray(value)), key in observed)
            for key, value in values.items()
        }
        for name, values in state.items()
        if name not in ("step", "config")
    }
    parts: list[dict[str, dict[str, tuple[float, bool]]]] = []
    dist.all_gather_object(parts, mine)
    gamma = merge_values([part["gamma"] for part in parts], "gamma")
    merged = {
        name: merge_values([part[name] for part in parts], name, gamma)
        for name in mine
    }
    return {**state, **merged}


def merge_values(
    parts: Sequence[dict[str, tuple[float, bool]]],
    name: str,
    gamma: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Number of every key, from ranks that observed it if there are any.

    Args:
        parts: Per rank, key -> (number, whether the rank observed it).
        name: ``"gamma"`` or ``"deviation"``.
        gamma: The merged gammas, for deviations: those are differences of
            numbers of gamma's size, so that their rounding errors are of that
            size too.

    Raises:
        RuntimeError: Two ranks that observed a tensor disagree by more than
            rounding.
    """
    merged: dict[str, tuple[float, bool]] = {}
    for part in parts:
        for key, (value, is_observed) in part.items():
            known = merged.get(key)
            if known is None or (is_observed and not known[1]):
                merged[key] = (value, is_observed)
            elif is_observed and not math.isclose(
                value,
                known[0],
                rel_tol=_TOLERANCE[name],
                abs_tol=_TOLERANCE_OF_GAMMA * gamma[key] if gamma else 0.0,
            ):
                raise RuntimeError(
                    f"ranks disagree about {name} of {key!r}: {known[0]} and "
                    f"{value}; was bind() given this run's model, were the "
                    "gradients of replicated tensors averaged, and do experts "
                    "have their global numbers in their names?"
                )
    return {key: value for key, (value, _) in merged.items()}
