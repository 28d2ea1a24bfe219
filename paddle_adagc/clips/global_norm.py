# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base of clips that follow the norm over all tensors."""

from __future__ import annotations

import paddle
from paddle import Tensor

from paddle_adagc import rule
from paddle_adagc.clips.base import TensorScalingClip


class GlobalNormClip(TensorScalingClip):
    """A clip whose one state follows the norm over all tensors.

    A step with a non-finite tensor is no observation: the norm of the others is
    not the model's. Takes one parameter group. In a hybrid-parallel run every
    step sums two numbers over all ranks, in one all-reduce.
    """

    _keeps_one_state = True

    def _observed_norm(self, norm: Tensor) -> tuple[Tensor, Tensor]:
        """L2 norm over the finite tensors of all ranks, and if that is all.

        Args:
            norm: float32 ``[num_tensors]``.

        Returns:
            The norm, float32 ``[1]``; bool ``[1]``, no tensor is lost.
        """
        reducer = self._known_reducer()
        counted = reducer.counted(norm)
        lost = paddle.logical_not(paddle.isfinite(counted)).astype("float64")
        total, num_lost = reducer.global_sum(
            paddle.concat(
                [rule.global_squared_norm(counted), lost.sum(keepdim=True)]
            )
        ).split(2)
        return total.sqrt().astype("float32"), num_lost == 0
