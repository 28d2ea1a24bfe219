# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the clip remembers of each tensor: vectors on the device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import paddle
from paddle import Tensor

from paddle_adagc.paddle_internals import unchecked


@dataclasses.dataclass(frozen=True, eq=False)
class Memory:
    """Vectors ``[num_tensors]``; each change gives a new memory."""

    gamma: Tensor
    """Reference norms, float32; ``inf``: no norm so far."""

    support: Tensor | None
    """Warm-up steps that agree with gamma, float32; None: not counted, or not
    needed any more."""

    num_nonfinite: Tensor
    """In how many steps each tensor's gradient had Inf or NaN, int32."""

    start: int = 0  # number of steps made when the warm-up began

    @classmethod
    def empty(cls, votes: bool) -> Memory:
        """Return that of no tensors; ``votes``: it counts support."""
        support = paddle.zeros([0], "float32") if votes else None
        counts = paddle.zeros([0], "int32")
        return cls(paddle.zeros([0], "float32"), support, counts)

    def restarted(self, num_steps: int, votes: bool) -> Memory:
        """Return it without any norm observed; the counts of Inf stay."""
        new = Memory.empty(votes).grown(self.num_tensors)
        return dataclasses.replace(
            new, num_nonfinite=self.num_nonfinite, start=num_steps
        )

    @property
    def num_tensors(self) -> int:
        """Number of entries of each vector."""
        return int(self.gamma.shape[0])

    def grown(self, num_tensors: int) -> Memory:
        """Return it with start values for new tensors."""
        if self.num_tensors == num_tensors:
            return self
        new = [-1] * (num_tensors - self.num_tensors)
        return self.reordered([*range(self.num_tensors), *new])

    @unchecked
    def reordered(self, places: Sequence[int]) -> Memory:
        """Return it for other tensors: the place of each before, -1: new."""
        support = self.support
        if support is not None:
            support = _pick(support, places, 0.0)
        gamma = _pick(self.gamma, places, math.inf)
        counts = _pick(self.num_nonfinite, places, 0)
        return Memory(gamma, support, counts, self.start)


def _pick(vector: Tensor, places: Sequence[int], start: float) -> Tensor:
    """Gather by places; ``start`` where there was none (-1)."""
    first = paddle.full([1], start, vector.dtype)
    index = paddle.to_tensor([place + 1 for place in places], "int64")
    return paddle.gather(paddle.concat([first, vector]), index)
