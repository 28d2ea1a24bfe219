# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip would have done with recorded norms.

A rule is a function of norms, so a record answers without training. It is an
open loop: under the other clip the weights, and so the later norms, would have
been others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.parallel.units import Units
from paddle_adagc.record.shadow import make_shadow


@dataclasses.dataclass(frozen=True)
class Replay:
    """A clip's factors and state, each float32 ``[num_rows, num_tensors]``."""

    h: np.ndarray
    """Factor of each gradient."""

    gamma: np.ndarray
    """After the step; NaN for a rule without gamma per tensor."""


def replay(
    norms: np.ndarray,
    clip: ClipGradByAdaGC,
    keys: Sequence[str],
    gamma: np.ndarray | None = None,
) -> Replay:
    """Let a new clip see recorded norms, a row per step.

    Args:
        norms: float32 ``[num_rows, num_tensors]`` before any clip, as
            ``read_record(...).tensors("norm")``; 0 and NaN are no gradient.
        clip: Clip of this package whose rule needs the norms alone.
        keys: Names of the tensors, as ``overrides`` look for them.
        gamma: Where AdaGC's gamma starts, ``[num_tensors]``; it is then past
            its warm-up. Default: from nothing, with the warm-up.

    Returns:
        What the clip would have done in each step.

    Raises:
        TypeError, ValueError: As for the shadow of a :class:`Record`.

    Example:
        >>> import numpy as np
        >>> from paddle_adagc import ClipGradByAdaGC
        >>> from paddle_adagc.record.replay import replay
        >>> norms = np.array([[1.0], [1.0], [8.0]], np.float32)
        >>> clip = ClipGradByAdaGC(t_start=2)
        >>> (replay(norms, clip, ["weight"]).h < 1).tolist()
        [[False], [False], [True]]
    """
    clip = make_shadow(clip)
    layer = paddle.nn.Layer()
    layer.norms = layer.create_parameter([len(keys)])
    # One parameter with a unit for each tensor: a step is then one gradient.
    units = Units(parts=dict.fromkeys(keys, 1), axis=0, key="{part}")
    clip.bind(layer, {"norms": units})
    if gamma is not None:
        clip.set_state_dict(_state(clip, gamma, keys))
    shape = norms.shape
    found = Replay(np.ones(shape, np.float32), np.full(shape, np.nan, "f4"))
    norms = np.nan_to_num(np.asarray(norms, np.float32), nan=0.0)
    for i, row in enumerate(norms):
        clip([(layer.norms, paddle.to_tensor(row))])
        columns = clip.snapshot().rows().columns
        found.h[i] = columns["h"]
        if "gamma" in columns:
            found.gamma[i] = columns["gamma"]
    return found


def _state(
    clip: ClipGradByAdaGC, gamma: np.ndarray, keys: Sequence[str]
) -> dict[str, Any]:
    """Return a state past the warm-up; a tensor without gamma starts anew."""
    known = np.where(np.isfinite(gamma) & (gamma > 0), gamma, math.inf)
    return {
        "step": clip.t_start,
        "gamma": dict(zip(keys, known.tolist(), strict=True)),
        "config": clip.state_dict()["config"],
    }
