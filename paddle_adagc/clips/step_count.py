# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How many training steps went through a clip, and when one begins."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from paddle_adagc.guards import Caller


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
    no optimizer, with a tensor of this step     begins a step
    no optimizer, with other tensors alone       belongs to it: a guess
    ===========================================  ===========================

    A step counts once one of its groups has a gradient (or waits for other
    ranks, which may have one). A group that is frozen changes nothing.
    """

    num_steps: int = 0
    """Steps begun so far."""

    optimizer: int | None = None  # number of the last caller; None: unknown
    group: int = 0  # its parameter group
    is_counted: bool = False  # this step, which other calls may join

    optimizers: AbstractSet[int] = frozenset()  # numbers; of this step
    tensors: tuple[Sequence[int], ...] = ()  # of each of its calls

    is_repeating: bool = False
    """Two calls in a row, of no optimizer, had gradients."""

    has_guessed: bool = False
    """A call of no optimizer belonged to the same step as the one before."""

    is_mixed: bool = False
    """Optimizers and others called for the same tensors."""

    def after(
        self, indexes: Sequence[int], caller: Caller | None, counts: bool
    ) -> StepCount:
        """Return the count after one more call of the clip.

        Args:
            indexes: Tensors that have a gradient in this call.
            caller: Optimizer that calls.
            counts: Whether the call makes a step, as it has gradients or other
                ranks may have some.
        """
        if caller is None or caller.group is None:
            return self._guess(indexes, counts)
        mine, group = caller.number, caller.group
        if mine == self.optimizer:
            joins = self.is_counted and group > self.group
        else:
            is_new = self.is_counted and mine not in self.optimizers
            # One without gradients here may have some on other ranks.
            is_theirs = bool(indexes) or self.optimizer is not None
            joins = is_new and is_theirs and self._has_none_of(indexes)
        is_by_hand = bool(self.tensors) and self.optimizer is None
        return StepCount(
            num_steps=self.num_steps + (counts and not joins),
            optimizer=mine,
            group=group,
            is_counted=counts or joins,
            optimizers=self.optimizers | {mine} if joins else {mine},
            tensors=(*self.tensors, indexes) if joins else (indexes,),
            has_guessed=self.has_guessed,
            is_mixed=self.is_mixed or (is_by_hand and not joins),
        )

    def _has_none_of(self, indexes: Sequence[int]) -> bool:
        return {*indexes}.isdisjoint(i for call in self.tensors for i in call)

    def _guess(self, indexes: Sequence[int], counts: bool) -> StepCount:
        """Count by the tensors: one that comes again begins a step."""
        if not counts:
            return self
        is_by_optimizer = self.optimizer is not None
        has_seen = any(self.tensors)
        is_gap = has_seen and not (is_by_optimizer or indexes)
        if is_gap and (self.has_guessed or not self.is_repeating):
            raise RuntimeError(
                "a parameter group has no gradients on this rank, so it cannot "
                "tell when a step begins: call the clip from an optimizer, "
                f"which can, or {REMEDY}"
            )
        has_both = bool(has_seen and indexes)
        joins = has_both and self._has_none_of(indexes)
        return StepCount(
            num_steps=self.num_steps + (not joins),
            is_counted=True,
            optimizers=self.optimizers if joins else frozenset(),
            tensors=(*self.tensors, indexes) if joins else (indexes,),
            is_repeating=self.is_repeating
            or (has_both and not is_by_optimizer),
            has_guessed=self.has_guessed or joins,
            is_mixed=self.is_mixed or (is_by_optimizer and not joins),
        )

    def warn_of_doubts(self, new: StepCount, owner: str) -> None:
        """Warn, once, of what makes the count ``new`` differ from training."""
        if new.is_mixed and not self.is_mixed:
            warnings.warn(
                f"{owner} is called by an optimizer and, for the same tensors, "
                "by your own code: each call counts as a step, so that its "
                "warm-up ends early. Leave one of the two out",
                stacklevel=5,
            )
        if new.has_guessed and not self.has_guessed:
            warnings.warn(
                f"{owner} was called outside of an optimizer for other tensors "
                "than before, and takes them for another parameter group of "
                "the same step: give the clip to an optimizer, which knows its "
                "steps, or give each set of tensors its own clip",
                stacklevel=5,
            )

    def resumed_at(self, num_steps: int) -> StepCount:
        """Return the count as if ``num_steps`` steps had been made."""
        return StepCount(
            num_steps, has_guessed=self.has_guessed, is_mixed=self.is_mixed
        )


REMEDY = "use one group, and apply_decay_param_fun where weight decay differs"
