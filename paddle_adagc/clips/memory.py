# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the clip remembers of each tensor: vectors on the device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

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

    def grown(self, num_tensors: int) -> Memory:
        """Return it with start values for new tensors."""
        if self.num_tensors == num_tensors:
            return self
        more = num_tensors - self.num_tensors
        new = Memory.new(more, self.support is not None)
        return self._map(
            lambda mine, theirs: paddle.concat([mine, theirs]), new
        )

    def chosen(self, indexes: Sequence[int]) -> Memory:
        """Return that of some of the tensors."""
        index = paddle.to_tensor([*indexes], "int64")
        return self._map(lambda mine, _: paddle.gather(mine, index), self)

    @unchecked
    def _map(
        self, make: Callable[[Tensor, Tensor], Tensor], other: Memory
    ) -> Memory:
        """Return what ``make`` makes of each vector and the other's."""
        support = None
        if self.support is not None and other.support is not None:
            support = make(self.support, other.support)
        return Memory(
            make(self.gamma, other.gamma),
            support,
            make(self.num_nonfinite, other.num_nonfinite),
            self.start,
        )
