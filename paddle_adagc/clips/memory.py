# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the clip remembers of each tensor: vectors on the device."""

from __future__ import annotations

import dataclasses
import math

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
    @unchecked
    def new(cls, num_tensors: int, votes: bool) -> Memory:
        """Return one without a norm observed; ``votes``: it counts support."""
        return cls(
            paddle.full([num_tensors], math.inf, "float32"),
            paddle.zeros([num_tensors], "float32") if votes else None,
            paddle.zeros([num_tensors], "int32"),
        )

    @property
    def num_tensors(self) -> int:
        """Number of entries of each vector."""
        return int(self.gamma.shape[0])

    @unchecked
    def grown(self, num_tensors: int) -> Memory:
        """Return it with start values for new tensors."""
        if self.num_tensors == num_tensors:
            return self
        more = num_tensors - self.num_tensors
        new = Memory.new(more, votes=False)
        return Memory(
            paddle.concat([self.gamma, new.gamma]),
            None
            if self.support is None
            else paddle.concat([self.support, paddle.zeros([more])]),
            paddle.concat([self.num_nonfinite, new.num_nonfinite]),
            self.start,
        )
