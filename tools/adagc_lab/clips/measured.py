# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What any clip does to every tensor, on one process or data-parallel."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import paddle
from paddle.nn.clip import ClipGradBase

from paddle_adagc import rule
from paddle_adagc.clips.gradients import GradientList

_ROUNDING = 1e-6  # of a tensor's norm, measured before and after the clip


class MeasuredClip(ClipGradBase):
    """Call a clip; measure every tensor's norm before and after it.

    Args:
        clip: Clip to call; None: none.
        keys: Name of a parameter -> the model's.
    """

    def __init__(
        self, clip: ClipGradBase | None, keys: Mapping[str, str]
    ) -> None:
        super().__init__()
        self.clip, self._keys = clip, keys
        self.seconds = 0.0  # of the last call
        self.h: dict[str, float] = {}
        """Factor of each tensor in the last step, by the model's names; 1 of
        norm 0, 0 of what was made 0, NaN of Inf and NaN that stayed."""

    def __str__(self) -> str:
        """Return the clip's own description."""
        return str(self.clip)

    def _dygraph_clip(self, params_grads: Any) -> Any:
        before = self._norms(params_grads)
        begin = time.perf_counter()
        clipped = params_grads if self.clip is None else self.clip(params_grads)
        self.seconds = time.perf_counter() - begin
        after = self._norms(clipped)
        self.h = {
            key: _factor(norm, after.get(key, norm))
            for key, norm in before.items()
        }
        return clipped

    @paddle.no_grad()
    def _norms(self, pairs: Any) -> dict[str, float]:
        pairs = [(p, g) for p, g in pairs if g is not None]
        squares = GradientList([g for _, g in pairs]).squared_norms()
        norms = rule.square_root(squares).tolist()
        names = [self._keys.get(p.name, p.name) for p, _ in pairs]
        return dict(zip(names, norms, strict=True))


def _factor(norm: float, left: float) -> float:
    if norm == 0:
        return 1.0
    if left == 0:
        return 0.0
    h = left / norm  # NaN if both are Inf
    return 1.0 if abs(h - 1) < _ROUNDING else h
