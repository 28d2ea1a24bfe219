# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a rule carries from step to step, by tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.clips.numerics import unchecked
from paddle_adagc.clips.tensor_table import TensorTable
from paddle_adagc.state import ClipState, Quantity

Kept = dict[str, Tensor]
"""Name of a quantity -> float32 ``[num_tensors]``; ``[1]`` of a global one."""


class Memory:
    """The declared quantities of a rule, on the device, and their tensors.

    Args:
        quantities: What the rule carries from step to step.
        optional: Names of quantities that a loaded state may lack, or hold in
            vain.
    """

    def __init__(
        self,
        quantities: Sequence[Quantity] = (),
        optional: Collection[str] = (),
    ) -> None:
        self.quantities = tuple(quantities)
        self.table = TensorTable()
        self._optional = optional
        self._kept: Kept
        self.restart()

    @unchecked()
    def __call__(self) -> Kept:
        """Return what is kept, with start values for tensors that are new."""
        kept = dict(self._kept)
        for quantity in (q for q in self.quantities if q.name in kept):
            vector = kept[quantity.name]
            num_new = len(self.table) - vector.shape[0]
            if num_new > 0 and not quantity.is_global:
                new = paddle.full([num_new], quantity.start, "float32")
                kept[quantity.name] = paddle.concat([vector, new])
        return kept

    def update(self, kept: Kept) -> None:
        """Take over the rule's next values; what they lack is dropped."""
        self._kept = kept

    @unchecked()
    def restart(self) -> None:
        """Set everything to its start."""
        self._kept = {
            q.name: paddle.full([int(q.is_global)], q.start, "float32")
            for q in self.quantities
        }

    @unchecked()
    def reorder(self, old: Sequence[int]) -> None:
        """Follow a table that was bound: ``old`` holds the former slots."""
        index = paddle.to_tensor(old, "int64")
        for name in self._per_tensor:
            self._kept[name] = paddle.gather(self._kept[name], index)

    def state(self, step: int, config: dict[str, Any]) -> ClipState:
        """Return the state; it shares the device's vectors."""
        kept = self()
        values = {name: kept.pop(name) for name in self._per_tensor}
        keys = tuple(self.table.keys) if values else ()
        return ClipState(step, config, keys, values, scalars=kept)

    @unchecked()
    def load(
        self, state: ClipState, arguments: Collection[str], owner: str
    ) -> None:
        """Take over a state; a refused one changes nothing.

        Args:
            state: Numbers of all tensors, in any order.
            arguments: Names of the clip's arguments.
            owner: The clip's class, for messages.

        Raises:
            ValueError: It is another clip's, or another model's.
        """
        state = self._with_optional(state)
        state.check(self.quantities, arguments, owner)
        if state.values:
            self.table.check_state(state.keys)
            self.table.adopt(state.keys)
            state = state.restrict(self.table.keys)
        self._kept = {
            name: paddle.to_tensor(vector, "float32")
            for name, vector in {**state.values, **state.scalars}.items()
        }

    @property
    def _per_tensor(self) -> list[str]:
        return [
            q.name
            for q in self.quantities
            if not q.is_global and q.name in self._kept
        ]

    def _with_optional(self, state: ClipState) -> ClipState:
        """Add optional quantities at their start, leave out unused ones."""
        names = [q.name for q in self.quantities]
        values = {
            name: vector
            for name, vector in state.values.items()
            if name in names or name not in self._optional
        }
        for q in self.quantities:
            if q.name in self._optional and q.name not in values:
                value = q.start if q.absent is None else q.absent
                values[q.name] = np.full(len(state.keys), value, np.float32)
        return dataclasses.replace(state, values=values)
