# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How many training steps went through a clip, and when one begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from paddle_adagc.paddle_internals import Caller


@dataclasses.dataclass(frozen=True)
class StepCount:
    """Training steps made so far; each call of the clip gives a new count.

    Paddle calls a clip once for each parameter group of an optimizer.

    ===========================================  ===========================
    the call comes from                          it
    ===========================================  ===========================
    an optimizer, for its first group            begins a step
    the same optimizer, for a later group        belongs to the same step
    the same group or an earlier one             begins a step
    another optimizer, new in this step, with    belongs to the same step
    other tensors (Muon and AdamW)
    another optimizer otherwise                  begins a step
    your own code                                begins a step
    ===========================================  ===========================

    A step counts once one of its groups has a gradient (or waits for other
    ranks, which may have one). A group that is frozen changes nothing.
    """

    num_steps: int = 0
    """Steps begun so far."""

    optimizer: int | None = None  # number of the last caller; None: none
    group: int | None = None  # its parameter group; None: unknown
    is_counted: bool = False  # this step, which other calls may join

    optimizers: AbstractSet[int] = frozenset()  # numbers; of this step
    tensors: tuple[Sequence[int], ...] = ()  # of each of its calls

    is_mixed: bool = False
    """Optimizers and others called for the same tensors."""

    def after(
        self, indexes: Sequence[int], caller: Caller | None, makes_step: bool
    ) -> StepCount:
        """Return the count after one more call of the clip.

        Args:
            indexes: Tensors that have a gradient in this call.
            caller: Optimizer that calls.
            makes_step: It has gradients, or other ranks may have some.
        """
        if caller is None and not makes_step:
            return self
        mine, joins = None, False
        if caller is not None:
            mine = caller.number
            joins = self._is_joined_by(indexes, caller.group, mine)
        is_other = bool(self.tensors) and (
            (mine is None) != (self.optimizer is None)
        )
        of_step = {*self.optimizers} if joins else set[int]()
        return StepCount(
            num_steps=self.num_steps + (makes_step and not joins),
            optimizer=mine,
            group=caller.group if caller else None,
            is_counted=makes_step or joins,
            optimizers=of_step if mine is None else of_step | {mine},
            tensors=(*self.tensors, indexes) if joins else (indexes,),
            is_mixed=self.is_mixed
            or (is_other and not self._has_none_of(indexes)),
        )

    def _is_joined_by(
        self, indexes: Sequence[int], group: int | None, optimizer: int
    ) -> bool:
        """Whether an optimizer's call belongs to the step of those before."""
        if not self.is_counted:
            return False
        if optimizer == self.optimizer:
            if group is None or self.group is None:
                return self._has_none_of(indexes)
            return group > self.group
        # One without gradients here may have some on other ranks.
        is_theirs = bool(indexes) or self.optimizer is not None
        is_new = optimizer not in self.optimizers
        return is_new and is_theirs and self._has_none_of(indexes)

    @property
    def place(self) -> tuple[int, int]:
        """Place of the last call among those of a training step."""
        return self.optimizer or 0, self.group or 0

    def _has_none_of(self, indexes: Sequence[int]) -> bool:
        return {*indexes}.isdisjoint(i for call in self.tensors for i in call)

    def resumed_at(self, num_steps: int) -> StepCount:
        """Return the count as if ``num_steps`` steps had been made."""
        return StepCount(num_steps, is_mixed=self.is_mixed)
