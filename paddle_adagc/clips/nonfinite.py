# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Treatment of gradients that hold Inf or NaN, or whose norm overflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.parallel.reduce import Reducer

NonFinite = Literal["zero", "raise", "propagate"]


class NonFiniteTreatment:
    """Change the factors of tensors without a finite norm, and count them.

    Args:
        mode: ``"zero"``, ``"raise"`` or ``"propagate"``.

    Raises:
        ValueError: ``mode`` is none of these.
    """

    def __init__(self, mode: NonFinite) -> None:
        if mode not in get_args(NonFinite):
            raise ValueError(
                f"nonfinite={mode!r} is not one of {get_args(NonFinite)}"
            )
        self._mode = mode
        self._count = paddle.zeros([0], "int32")  # [num_tensors]

    def refuse(
        self, norm: Tensor, keys: Sequence[str], step: int, reducer: Reducer
    ) -> None:
        """With ``"raise"``, stop on all ranks; waits for the device.

        Args:
            norm: float32 ``[num_tensors]``.
            keys: Key of every tensor.
            step: Index of the optimizer step.
            reducer: Tells the other ranks.

        Raises:
            FloatingPointError: A norm is not finite here or on another rank.
        """
        if self._mode != "raise":
            return
        lost = np.flatnonzero(~np.isfinite(norm.numpy()))
        if reducer.any_rank(bool(lost.size)):
            names = ", ".join(keys[int(i)] for i in lost)
            raise FloatingPointError(
                f"the gradient of {lost.size} tensors on this rank is not "
                f"finite at step {step}: {names}"
            )

    def treat(self, h: Tensor, norm: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return factors, and which gradients become 0 (None: none can).

        Args:
            h: float32 ``[num_tensors]``.
            norm: float32 ``[num_tensors]``.
        """
        if self._mode == "raise":
            return h, None
        finite = paddle.isfinite(norm)
        lost = paddle.logical_not(finite)
        self._count = self.count(h.shape[0]) + lost.astype("int32")
        if self._mode == "propagate":
            return paddle.where(finite, h, paddle.ones_like(h)), None
        return paddle.where(finite, h, paddle.zeros_like(h)), lost

    def count(self, num_tensors: int) -> Tensor:
        """Return how often each tensor was lost, int32 ``[num_tensors]``."""
        num_new = num_tensors - self._count.shape[0]
        if num_new <= 0:
            return self._count
        return paddle.concat([self._count, paddle.zeros([num_new], "int32")])

    def reorder(self, old: Sequence[int]) -> None:
        """Follow a table that was bound: ``old`` holds the former slots."""
        count = self.count(max(old, default=-1) + 1)
        self._count = paddle.gather(count, paddle.to_tensor(old, "int64"))

    def update(self, count: Tensor) -> None:
        """Take over a count that a fused kernel made."""
        self._count = count
