# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure what a clip does to every tensor, for the record."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn.clip import ClipGradBase

from adagc_lab.record.clock import device_seconds
from adagc_lab.record.files import QUANTITIES
from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.gradients import GradientList


class ObservedClip(ClipGradBase):
    """Call another clip; measure its time, and norms before and after it.

    The norms are measured outside of the clip, in the same way for every
    method. Reading them waits for the device: this is for small runs. The
    parameters are named in the order of the record.
    """

    norm: np.ndarray  # of the last step, like clipped_norm
    clipped_norm: np.ndarray
    seconds: float

    def __init__(
        self, clip: ClipGradBase, parameters: dict[str, Tensor]
    ) -> None:
        super().__init__()
        self.clip = clip
        self.keys = list(parameters)
        self._slot = {p.name: i for i, p in enumerate(parameters.values())}

    def __str__(self) -> str:
        """Return the clip's own description."""
        return str(self.clip)

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: Any) -> Any:
        self.norm = self._norms(params_grads)
        start = device_seconds()
        clipped = self.clip(params_grads)
        self.seconds = device_seconds() - start
        self.clipped_norm = self._norms(clipped)
        return clipped

    def _norms(self, params_grads: Any) -> np.ndarray:
        gradients: list[Tensor | None] = [None] * len(self._slot)
        for parameter, gradient in params_grads:
            gradients[self._slot[parameter.name]] = gradient
        return np.sqrt(GradientList(gradients).squared_norms().numpy())

    def step_metrics(self) -> dict[str, float]:
        """Return the last step's numbers for its line of the record."""
        finite = np.isfinite(self.norm)
        norm = self.norm[finite].astype(np.float64)
        changed = self.clipped_norm < self.norm * (1 - 1e-6)
        clipped = (changed | ~finite)[self.norm != 0]
        return {
            "global_grad_norm": float(np.sqrt(np.sum(norm**2))),
            "clipped_fraction": float(clipped.mean()) if clipped.size else 0.0,
            "nonfinite": int(np.sum(~finite)),
            "clip_seconds": self.seconds,
        }

    def tensor_rows(self, moments: np.ndarray | None) -> np.ndarray:
        """Return the last step's block for :class:`RunWriter`.

        ``moments``: norms of the optimizer's moments, ``[2, num_tensors]``.
        """
        rows = np.full((len(QUANTITIES), len(self.keys)), np.nan, np.float32)
        rows[0], rows[1] = self.norm, self.clipped_norm
        if isinstance(self.clip, TensorScalingClip):
            tensors = self.clip.metrics()["tensors"]
            rows[2] = [
                tensors.get(key, {}).get("gamma", np.nan) for key in self.keys
            ]
        if moments is not None:
            rows[3:] = moments
        return rows
