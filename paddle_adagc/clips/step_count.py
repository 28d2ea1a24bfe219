# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How many optimizer steps went through a clip, and when one begins."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from paddle_adagc.guards import Caller


@dataclasses.dataclass(frozen=True)
class StepCount:
    """Optimizer steps made so far; each call of the clip gives a new count.

    Paddle calls a clip once for each parameter group of an optimizer.

    ===========================================  ===========================
    the call comes from                          it
    ===========================================  ===========================
    an optimizer, for its first group            begins a step
    the same optimizer, for a later group        belongs to the same step
    the same group or an earlier one             begins a step
    another optimizer                            begins a step
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
    is_counted: bool = False
    """The optimizer's step, of which other groups may follow, is counted."""

    is_shared: bool = False
    """An optimizer called again after another one had called."""

    known: AbstractSet[int] = frozenset()  # numbers of all callers
    seen: AbstractSet[int] = frozenset()
    """Tensors of this step, where no optimizer is known."""

    is_repeating: bool = False  # then two calls in a row had gradients
    has_guessed: bool = False
    """Then a call belonged to the same step as the one before."""

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
        is_known = mine == self.optimizer
        is_other = not is_known and self.optimizer is not None
        was_counted = is_known and group > self.group and self.is_counted
        return StepCount(
            num_steps=self.num_steps + (counts and not was_counted),
            optimizer=mine,
            group=group,
            is_counted=counts or was_counted,
            is_shared=self.is_shared or (is_other and mine in self.known),
            known=self.known if is_known else self.known | {mine},
            has_guessed=self.has_guessed,
        )

    def _guess(self, indexes: Sequence[int], counts: bool) -> StepCount:
        """Count by the tensors: one that comes again begins a step."""
        if not counts:
            return self
        seen = self.seen
        is_gap = bool(seen) and not indexes
        if is_gap and (self.has_guessed or not self.is_repeating):
            raise RuntimeError(
                "a parameter group has no gradients on this rank, so it cannot "
                "tell when a step begins: call the clip from an optimizer, "
                f"which can, or {REMEDY}"
            )
        joins = bool(seen and indexes) and seen.isdisjoint(indexes)
        seen = seen | {*indexes} if joins else {*indexes}
        return dataclasses.replace(
            self,
            num_steps=self.num_steps + (not joins),
            optimizer=None,
            seen=seen,
            is_repeating=self.is_repeating or bool(self.seen and indexes),
            has_guessed=self.has_guessed or joins,
        )

    def warn_of_doubts(self, new: StepCount, owner: str) -> None:
        """Warn, once, of what makes the count ``new`` differ from training."""
        if new.is_shared and not self.is_shared:
            warnings.warn(
                f"two optimizers call this {owner} in turn, as for a GAN, and "
                "each of their steps counts: give each optimizer its own clip",
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
            num_steps, known=self.known, has_guessed=self.has_guessed
        )


REMEDY = "use one group, and apply_decay_param_fun where weight decay differs"
