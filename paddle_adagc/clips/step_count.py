# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Which calls of a clip make up one optimizer step."""

from __future__ import annotations

from collections.abc import Collection


class StepCount:
    """Counts optimizer steps by the tensors that come by.

    An optimizer calls its clip once per step and parameter group. A tensor that
    comes by again begins the next step.

    Attributes:
        num_steps: Steps begun so far.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._seen: set[int] = set()  # in this step
        self._has_groups = False  # a step had two calls with gradients
        self._is_repeating = False  # two calls in a row had gradients
        self._num_gaps = 0  # calls without gradients after one with some

    def continue_at(self, num_steps: int) -> None:
        """Go on as if ``num_steps`` steps had been made."""
        self.num_steps = num_steps
        self._seen = set()

    def is_next_step(self, slots: Collection[int], one_group: str = "") -> bool:
        """Whether a call with these tensors begins a step.

        A call without gradients counts as one: the clip is called so only where
        ranks wait for each other, and on a rank that has none.

        Args:
            slots: Of the tensors that have a gradient in this call.
            one_group: Why there must not be several groups, if that is so.

        Raises:
            RuntimeError: There are several groups against ``one_group``; or one
                of them has no gradients here, so that this rank cannot tell
                when a step begins.
        """
        if slots and self._seen.isdisjoint(slots) and self._seen:
            if one_group:
                raise RuntimeError(
                    f"the clip was called for several parameter groups, and "
                    f"{one_group}: {_REMEDY}. (Other tensors than in the step "
                    "before look like a group: give each set its own clip)"
                )
            return False
        is_gap = not self._is_repeating and self._num_gaps > 0
        if self._seen and not slots and (self._has_groups or is_gap):
            raise RuntimeError(
                "a parameter group has no gradients on this rank, which cannot "
                f"tell then when a step begins: {_REMEDY}"
            )
        return True

    def add(self, slots: Collection[int], is_next_step: bool) -> None:
        """Count a call, with what :meth:`is_next_step` said of it."""
        if self._seen:
            self._is_repeating = self._is_repeating or bool(slots)
            self._num_gaps += not slots
        if is_next_step:
            self.num_steps += 1
            self._seen = set()
        else:
            self._has_groups = True
        self._seen.update(slots)


_REMEDY = "use one group, and apply_decay_param_fun where weight decay differs"
