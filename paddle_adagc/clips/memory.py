# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip remembers of each tensor: vectors on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import paddle
from paddle import Tensor

from paddle_adagc.guards import unchecked
from paddle_adagc.state import Quantity

State = dict[str, Tensor]
"""Name of a quantity -> float32 ``[num_tensors]``; ``[1]`` of a global one."""


def _no_counts() -> Tensor:
    return paddle.zeros([0], "int32")


@dataclasses.dataclass(frozen=True, eq=False)
class Memory:
    """The vectors by tensor; each change gives a new memory.

    All of them but those of global quantities have the same length. A rule may
    drop a count (:attr:`Quantity.absent`) that it needs no longer.
    """

    quantities: Sequence[Quantity] = ()  # what the rule carries
    vectors: State = dataclasses.field(default_factory=dict)
    num_nonfinite: Tensor = dataclasses.field(default_factory=_no_counts)
    """In how many steps each tensor's gradient had Inf or NaN, int32."""

    start: int = 0  # number of steps made when the warm-up began

    @unchecked
    def restarted(self, num_steps: int) -> Memory:
        """Return it without what the rule has observed."""
        empty: State = {
            q.name: paddle.full([int(q.is_global)], q.start, "float32")
            for q in self.quantities
        }
        length = self.num_nonfinite.shape[0]
        new = dataclasses.replace(self, vectors=empty, start=num_steps)
        return new._mapped([-1] * length, self.num_nonfinite)

    def grown(self, num_tensors: int) -> Memory:
        """Return it with start values for new tensors."""
        length = self.num_nonfinite.shape[0]
        if length == num_tensors:
            return self
        new = [-1] * (num_tensors - length)
        return self.reordered([*range(length), *new])

    def reordered(self, places: Sequence[int]) -> Memory:
        """Return it for other tensors: the place of each before, -1: new."""
        return self._mapped(places, _pick(self.num_nonfinite, places, 0))

    @unchecked
    def _mapped(self, places: Sequence[int], num_nonfinite: Tensor) -> Memory:
        vectors = {
            q.name: vector if q.is_global else _pick(vector, places, q.start)
            for q, vector in self._carried()
        }
        return self.after(vectors, num_nonfinite)

    def after(self, vectors: State, num_nonfinite: Tensor) -> Memory:
        """Return it after a step."""
        return dataclasses.replace(
            self, vectors=vectors, num_nonfinite=num_nonfinite
        )

    @unchecked
    def loaded(self, values: Mapping[str, Any], start: int) -> Memory:
        """Return it with the numbers of a state, in the order of the tensors.

        ``values``: ``[num_tensors]``, or ``[]`` of a global quantity.
        """
        vectors: State = {
            name: paddle.to_tensor(vector.reshape(-1), "float32")
            for name, vector in values.items()
        }
        return dataclasses.replace(self, vectors=vectors, start=start)

    @unchecked
    def values(self) -> dict[str, Tensor]:
        """Return what :meth:`loaded` takes; it shares the device's memory."""
        return {
            q.name: vector.reshape([]) if q.is_global else vector
            for q, vector in self._carried()
        }

    def metrics(self) -> State:
        """Return what the rule knows per tensor, each ``[num_tensors]``."""
        length = self.num_nonfinite.shape[0]
        return {
            q.name: vector.expand([length])
            for q, vector in self._carried()
            if q.absent is None
        }

    def _carried(self) -> list[tuple[Quantity, Tensor]]:
        """Return the quantities that there are now, with their vectors."""
        return [
            (q, self.vectors[q.name])
            for q in self.quantities
            if q.name in self.vectors
        ]


def _pick(vector: Tensor, places: Sequence[int], start: float) -> Tensor:
    """Gather by places; ``start`` where there was none (-1)."""
    first = paddle.full([1], start, vector.dtype)
    index = paddle.to_tensor([place + 1 for place in places], "int64")
    return paddle.gather(paddle.concat([first, vector]), index)
