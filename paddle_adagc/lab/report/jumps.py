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
"""Loss jumps: how far the loss rose over its recent level, and for how long."""

from __future__ import annotations

import dataclasses

import numpy as np

from paddle_adagc.lab.record.files import RunRecord

BEFORE = 50
"""Steps before a step whose median is the level that it jumps from."""

SETTLED = 10
"""Consecutive steps whose median has to be back at the level."""


@dataclasses.dataclass(frozen=True)
class Jump:
    """The rise of the loss at one step over its level just before."""

    step: int
    height: float
    """Loss minus the median of the :data:`BEFORE` judged losses before, nat;
    infinite where the loss is not finite."""

    recovery_steps: int | None
    """Steps until the median of the next :data:`SETTLED` losses is at most two
    robust deviations above the old level; ``None``: not within the run."""


def judged_steps(run: RunRecord, skip_steps: int) -> np.ndarray:
    """Indices of the steps whose loss says something about the model.

    Left out are the first ``skip_steps`` and the steps whose batch or
    activations were corrupted: their own loss is computed from the corruption,
    whatever the state of the model. A gradient fault shows one step later.

    Returns:
        ``[num_judged]`` int64, increasing.
    """
    judged = np.arange(run.num_steps) >= skip_steps
    for step, faults in run.faults.items():
        if not all(fault["kind"].startswith("gradient") for fault in faults):
            judged[step] = False
    return np.flatnonzero(judged)


def model_loss(run: RunRecord) -> np.ndarray:
    """Return the loss, ``[num_steps]``, NaN where the batch was corrupted."""
    loss = np.full(run.num_steps, np.nan)
    steps = judged_steps(run, 0)
    loss[steps] = run.loss[steps]
    return loss


def worst_jump(
    run: RunRecord, skip_steps: int, between: tuple[int, int] | None = None
) -> Jump | None:
    """Find the largest jump among the judged steps.

    Args:
        run: The run.
        skip_steps: First steps that are not judged.
        between: Only look at the steps ``between[0] <= step < between[1]``.

    Returns:
        ``None`` if no step has :data:`BEFORE` judged steps before it.
    """
    steps = judged_steps(run, skip_steps)
    if len(steps) <= BEFORE:
        return None
    loss = run.loss[steps]
    with np.errstate(all="ignore"):
        windows = np.lib.stride_tricks.sliding_window_view(loss, BEFORE)[:-1]
        level = np.median(np.where(np.isfinite(windows), windows, np.inf), 1)
        height = loss[BEFORE:] - level
    height[~np.isfinite(loss[BEFORE:])] = np.inf
    height[np.isnan(height) | ~np.isfinite(level)] = -np.inf
    candidates = steps[BEFORE:]
    if between is not None:
        inside = (candidates >= between[0]) & (candidates < between[1])
        height = np.where(inside, height, -np.inf)
    best = int(np.argmax(height))
    if height[best] == -np.inf:
        return None
    return Jump(
        step=int(candidates[best]),
        height=float(height[best]),
        recovery_steps=_recovery(loss, steps, best + BEFORE),
    )


def _recovery(loss: np.ndarray, steps: np.ndarray, index: int) -> int | None:
    before = loss[index - BEFORE : index]
    before = before[np.isfinite(before)]
    level = np.median(before)
    deviation = 1.4826 * np.median(np.abs(before - level))
    after = np.where(np.isfinite(loss[index:]), loss[index:], np.inf)
    if len(after) < SETTLED:
        return None
    medians = np.median(
        np.lib.stride_tricks.sliding_window_view(after, SETTLED), axis=1
    )
    settled = np.flatnonzero(medians <= level + 2 * deviation)
    if not len(settled):
        return None
    return int(steps[index + settled[0]] - steps[index])
