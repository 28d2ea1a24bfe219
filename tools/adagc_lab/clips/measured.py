# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What any clip does to every tensor, on one process or data-parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import paddle
from paddle.nn.clip import ClipGradBase

from paddle_adagc import rule
from paddle_adagc.clips.gradients import GradientList

_ROUNDING = 1e-6  # of a tensor's norm, measured before and after the clip
_SAME = 1e-5
_NUM_LOWEST = 3


class MeasuredClip(ClipGradBase):
    """Call a clip; measure every tensor's norm before and after it.

    Args:
        clip: Clip to call; None: none.
        keys: Name of a parameter -> the model's.
        is_due: Called at every step: is this one measured?
    """

    def __init__(
        self,
        clip: ClipGradBase | None,
        keys: Mapping[str, str],
        is_due: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.clip, self._keys, self._is_due = clip, keys, is_due
        self.seconds = 0.0  # of the last call
        self.tensors: dict[str, dict[str, float]] = {}
        """Key -> ``norm``, ``clipped_norm`` and ``h`` of the last step, if that
        was measured."""

    def __str__(self) -> str:
        """Return the clip's own description."""
        return str(self.clip)

    def _dygraph_clip(self, params_grads: Any) -> Any:
        self.tensors = {}
        if not self._is_due():
            return self._clip(params_grads)
        before = self._norms(params_grads)
        begin = time.perf_counter()
        clipped = self._clip(params_grads)
        self.seconds = time.perf_counter() - begin
        after = self._norms(clipped)
        for key, norm in before.items():
            left = after.get(key, norm)
            with np.errstate(all="ignore"):
                h = 1.0 if norm == 0 else float(np.divide(left, norm))
            self.tensors[key] = {
                "norm": norm,
                "clipped_norm": left,
                "h": 1.0 if h > 1 - _ROUNDING else h,
            }
        return clipped

    def _clip(self, params_grads: Any) -> Any:
        return params_grads if self.clip is None else self.clip(params_grads)

    @paddle.no_grad()
    def _norms(self, pairs: Any) -> dict[str, float]:
        pairs = [(p, g) for p, g in pairs if g is not None]
        squares = GradientList([g for _, g in pairs]).squared_norms()
        norms = rule.square_root(squares).tolist()
        names = [self._keys.get(p.name, p.name) for p, _ in pairs]
        return dict(zip(names, norms, strict=True))

    def summary(self) -> dict[str, Any]:
        """Return the last step in a few numbers; empty if it was not measured.

        Those of :meth:`paddle_adagc.ClipGradByAdaGC.summary` that a run prints
        and records. Inf and NaN are in no norm and no share.
        """
        if not self.tensors:
            return {}
        rows = [[*row.values()] for row in self.tensors.values()]
        norm, left, h = np.array(rows, np.float64).T
        finite = np.isfinite(norm)
        seen = finite & (norm > 0)
        lowest = sorted(
            (float(h[i]), key) for i, key in enumerate(self.tensors) if seen[i]
        )
        return {
            "global_grad_norm": float(np.sqrt(np.square(norm[finite]).sum())),
            "clipped_grad_norm": float(
                np.sqrt(np.square(left[np.isfinite(left)]).sum())
            ),
            "clipped_fraction": float((h[seen] < 1).mean()) if any(seen) else 0,
            "h_min": lowest[0][0] if lowest else 1.0,
            "num_tensors": int(seen.sum()),
            "nonfinite": int((~finite).sum()),
            # As under GlobalGC: one factor names no tensor.
            "lowest_h": {
                key: value
                for value, key in lowest[:_NUM_LOWEST]
                if value < lowest[-1][0] * (1 - _SAME)
            },
        }
