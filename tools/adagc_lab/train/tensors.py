# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run adds to its record of every tensor: ``record.tensors``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from adagc_lab.clips.measured import MeasuredClip
from adagc_lab.record.files import CLIP_H, MOMENTS
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.optimizer import put_into_optimizer


def named_tensors(model: nn.Layer) -> dict[str, Tensor]:
    """Return a model's trainable parameters by name."""
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if not parameter.stop_gradient
    }


class TensorColumns:
    """Factors of an optimizer's clip, and norms of moments, step by step.

    Args:
        model: Names the tensors.
        optimizer: Gets a clip that measures its own.
        with_moments: Whether Adam's moments and the updates are recorded.
    """

    def __init__(
        self, model: nn.Layer, optimizer: Any, with_moments: bool
    ) -> None:
        self._parameters = named_tensors(model)
        self._optimizer, self._with_moments = optimizer, with_moments
        self._weights: list[Tensor] = []  # before the step
        keys = {p.name: key for key, p in self._parameters.items()}
        self._measured = MeasuredClip(optimizer._grad_clip, keys)
        put_into_optimizer(optimizer, self._measured)

    def begin_step(self) -> None:
        """Keep the weights, if the update is recorded."""
        if self._with_moments:
            self._weights = [p.clone() for p in self._parameters.values()]

    def numbers(self) -> dict[str, Any]:
        """Return numbers of the step; lists are those of all tensors."""
        h = self._measured.h
        found: dict[str, Any] = {
            "clip_seconds": self._measured.seconds,
            CLIP_H: [h.get(key, math.nan) for key in self._parameters],
        }
        return found | self._moments() if self._with_moments else found

    @paddle.no_grad()
    def _moments(self) -> dict[str, Any]:
        """Norms of moments and update; root of the second moments' sum."""
        after = self._parameters.values()
        update = [p - w for p, w in zip(after, self._weights, strict=True)]
        numbers: dict[str, Any] = {"update_norm": _norms(update, whole=True)}
        for name in MOMENTS:
            held = self._optimizer._accumulators[name]
            numbers[name] = _norms([held.get(p.name) for p in after])
        total = sum(float(moment.sum()) for moment in held.values())
        return {**numbers, "second_moment_root": math.sqrt(total)}


def _norms(tensors: list[Any], whole: bool = False) -> Any:
    """Return the norm of each tensor, or that of all together."""
    squares = GradientList(tensors).squared_norms().numpy()
    return np.sqrt(squares.sum() if whole else squares).tolist()
