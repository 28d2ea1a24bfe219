# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which calls of a clip make up one optimizer step."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping


@dataclasses.dataclass(frozen=True)
class StepCount:
    """Optimizer steps, counted by the tensors that come by.

    An optimizer calls its clip once per step and parameter group. A tensor that
    comes by again begins the next step. If a group is frozen, a new tensor also
    begins a step once all groups were called: it is of a first group that was
    frozen before.
    """

    num_steps: int = 0
    """Steps begun so far."""

    seen: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Tensors met in this step -> number of the call, from 0."""

    has_groups: bool = False
    """A step had two calls with gradients."""

    is_repeating: bool = False
    """Two calls in a row had gradients."""

    num_gaps: int = 0
    """Calls without gradients after one with some."""

    num_calls: int = 0
    """Calls with gradients in this step."""

    is_irregular: bool = False
    """A step had one such call though others had several."""

    position: int = 0
    """Calls in this step, with gradients or without."""

    period: int = 0
    """Calls in every step; 0: not known so far."""

    def after(self, slots: Collection[int], one_group: str = "") -> StepCount:
        """Return the count after one more call.

        A call without gradients counts as one: the clip is called so only where
        ranks wait for each other, and on a rank that has none.

        Args:
            slots: Tensors that have a gradient in this call.
            one_group: Why there must not be several groups, if that is so.

        Raises:
            RuntimeError: There are several groups against ``one_group``; or one
                of them has no gradients here, so that this rank cannot tell
                when a step begins.
        """
        again = next((slot for slot in slots if slot in self.seen), None)
        is_over = self.num_calls < self.period <= self.position
        is_new = again is not None or is_over
        is_same_step = bool(slots and self.seen and not is_new)
        if is_same_step and one_group:
            raise RuntimeError(
                f"the clip was called for several parameter groups, and "
                f"{one_group}: {_REMEDY}. (Other tensors than in the step "
                "before look like a group: give each set its own clip)"
            )
        is_gap = not self.is_repeating and self.num_gaps > 0
        if self.seen and not slots and (self.has_groups or is_gap):
            raise RuntimeError(
                "a parameter group has no gradients on this rank, so it cannot "
                f"tell when a step begins: {_REMEDY}"
            )
        is_short = self.has_groups and self.num_calls == 1 and not is_over
        period, place = self.period, self.position
        if again is not None:
            distance = place - self.seen[again]
            if not period or distance % period:  # else: steps without any
                period = distance
            place = self.seen[again]
        elif is_over:
            place %= period
        seen = dict.fromkeys(slots, place)
        return StepCount(
            num_steps=self.num_steps + (not is_same_step),
            seen={**self.seen, **seen} if is_same_step else seen,
            has_groups=self.has_groups or is_same_step,
            is_repeating=self.is_repeating or bool(self.seen and slots),
            num_gaps=self.num_gaps + bool(self.seen and not slots),
            num_calls=self.num_calls * is_same_step + bool(slots),
            is_irregular=self.is_irregular or (is_short and not is_same_step),
            position=place + 1,
            period=period,
        )

    def after_empty_group(self) -> StepCount:
        """Return the count after a call that is no step of its own."""
        return dataclasses.replace(self, position=self.position + 1)

    def resumed_at(self, num_steps: int) -> StepCount:
        """Return the count as if ``num_steps`` steps had been made."""
        return dataclasses.replace(
            self, num_steps=num_steps, seen={}, num_calls=0, position=0
        )


_REMEDY = "use one group, and apply_decay_param_fun where weight decay differs"
