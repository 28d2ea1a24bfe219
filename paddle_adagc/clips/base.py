# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ``grad_clip`` contract that all norm-based clips share: one step.

Which tensors take part, when a step begins and what happens to Inf and NaN is
the same for all of them; the rule that gives ``h`` is the subclass's.
"""

from __future__ import annotations

import abc
import warnings
from typing import Any, NoReturn

import paddle
from paddle import Tensor

from paddle_adagc import rule
from paddle_adagc.clips.gradients import refuse_nonfinite, treat_nonfinite
from paddle_adagc.clips.last_step import Call, LastStep
from paddle_adagc.clips.lookup import Found, LeavesOut, Pairs, find
from paddle_adagc.clips.memory import Memory, State
from paddle_adagc.clips.stateful import StatefulClip
from paddle_adagc.clips.step import Decision, Step
from paddle_adagc.clips.step_count import REMEDY
from paddle_adagc.guards import (
    Caller,
    eager,
    find_caller,
    has_moments,
    on_skipped_update,
    take_back_skipped,
    unchecked,
)
from paddle_adagc.parallel.agreement import settings_of
from paddle_adagc.parallel.reduce import Reducer


class TensorScalingClip(StatefulClip, abc.ABC):
    """A ``grad_clip`` that multiplies each tensor's gradient by its own ``h``.

    Parameters with ``need_clip=False`` and pairs without a gradient pass
    through untouched, in their places. Gradients are scaled in place, as
    ``paddle.nn.ClipGradByGlobalNorm`` does, and without waiting for the device.

    An optimizer calls its clip once per parameter group. A step that
    ``paddle.amp.GradScaler`` skips for an overflow, or whose update fails,
    leaves step count and state as they were.

    A rule is a subclass: it declares what it carries with :meth:`keep`, and
    decides in :meth:`advance`.

    Example:
        A rule without a state: no tensor's norm may exceed 1.

        >>> import paddle
        >>> from paddle_adagc.clips.base import TensorScalingClip
        >>> from paddle_adagc.clips.step import Decision
        >>> class ClipEachTensor(TensorScalingClip):
        ...     def advance(self, step):
        ...         return Decision((1 / step.norm).clip(max=1.0), {})
        >>> clip = ClipEachTensor()
        >>> weight = paddle.create_parameter([4], "float32")
        >>> [(_, gradient)] = clip([(weight, paddle.full([4], 4.0))])
        >>> gradient.tolist()
        [0.5, 0.5, 0.5, 0.5]
    """

    needs_one_group = False
    """The rule is about all tensors: one call has to have them all."""

    largest_h = 1.0
    """A larger factor is an error of the rule."""

    needs_whole_tensors = False
    """The rule cannot work on a rank's part of a tensor."""

    step_to_compare = 1
    """In this step the clip compares its norms with other ranks', once."""

    leaves_out: LeavesOut | None = None
    """Whether the tensor of a key is not clipped; None: all are."""

    is_shadow = False
    """Follow the gradients, and leave them as they are. The ranks' norms are
    not compared: the clip that acts may make them differ."""

    starts_late = False
    """The first step is not the run's: it switches to this clip."""

    @abc.abstractmethod
    def advance(self, step: Step) -> Decision | tuple[Tensor, State]:
        """Decide about one call; change nothing, and do not wait.

        Args:
            step: Norms, what the rule carries, keys and sizes of the tensors.

        Returns:
            ``h``, the factor of each gradient, float32 ``[num_tensors]``, and
            the new value of each quantity that :meth:`keep` declared, of the
            shape in ``step.state``. Where a norm is not finite ``h`` is of no
            consequence, and the rule has to leave its quantities as they are.
        """

    @eager
    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: Pairs) -> Pairs:
        """Clip the gradients of one call in place, and return the pairs.

        1. Find the gradients; measure each, and sum its squared norm over the
           ranks that hold parts of the tensor.
        2. Let the rule turn the norms into factors ``h`` and its next state.
        3. Multiply every gradient by its ``h``; treat non-finite ones.
        4. Commit step count and memory: a step happens, or it does not. If the
           optimizer then makes no update, take them back.
        """
        self._num_calls += 1
        owner = type(self).__name__
        pairs = list(params_grads)
        if pairs and isinstance(pairs[0], Tensor):
            raise TypeError(
                f"{owner} takes pairs of parameter and gradient, not "
                "parameters: give it to an optimizer as grad_clip"
            )
        tensors, ranks = self._tensors, self._ranks
        found = self._find(pairs)
        if found is None:
            return pairs
        if self.needs_whole_tensors:
            ranks.refuse_parts(tensors.keys)
        reducer = ranks.reducer or self._find_reducer()
        if not ranks.has_agreed:
            ranks.agree_once(settings_of(self._state()))
        caller = find_caller()
        if caller is not None:
            take_back_skipped(caller, self._take_back)
        old = self._steps
        counts = bool(found.pairs) or reducer.communicates
        steps = old.after(found.indexes, caller, counts)
        if not counts:
            self._steps = steps
            return pairs
        begins = steps.num_steps > old.num_steps
        if self.needs_one_group and not begins:
            raise RuntimeError(
                f"{owner} was called for several parameter groups, and has one "
                f"state for all tensors: {REMEDY}"
            )
        old.warn_of_doubts(steps, owner)
        if begins and steps.num_steps == 1:
            self._warn_of_a_missing_state(caller)
        call, memory = self._clip_(found, reducer, steps.num_steps - 1, begins)
        if begins or steps.optimizer != old.optimizer:
            self._before = old, self._memory
        if not self._calls or self._calls[-1].present is not call.present:
            tensors.observed.update(call.present)
        self._calls = [call] if begins else [*self._calls, call]
        self._steps, self._memory = steps, memory
        if caller is None:
            return pairs
        return on_skipped_update(caller, pairs, self._take_back)

    def _find(self, pairs: Pairs) -> Found | None:
        group = self.sharding_group
        return find(pairs, self._tensors, self._ranks, self.leaves_out, group)

    @eager
    @paddle.no_grad()
    @unchecked
    def _measure(self, params_grads: Pairs) -> LastStep:
        """Measure gradients with which no step is made; change nothing."""
        self._num_calls += 1
        calls: list[Call] = []
        found, reducer = self._find([*params_grads]), self._find_reducer()
        if found is not None and (found.pairs or reducer.communicates):
            squared_norm = found.gradients.squared_norms()
            norm = rule.square_root(reducer.local_norms(squared_norm))
            calls = [Call(found.present, norm, paddle.ones_like(norm))]
        return LastStep(calls, [*self._tensors.keys], {})

    def _warn_of_a_missing_state(self, caller: Caller | None) -> None:
        """Warn if the run was resumed, and this clip was not.

        Of another group than the first the optimizer may have made moments in
        this very step.
        """
        is_late = self.is_shadow or self.starts_late
        if caller is None or caller.group or is_late:
            return
        if not has_moments(caller.optimizer):
            return
        warnings.warn(
            f"this {type(self).__name__} makes its first step, and its "
            "optimizer has made some: in a resumed run load the clip's state, "
            "too (clip.set_state_dict), or it starts anew. If the run switches "
            "to this clip now, all is well",
            stacklevel=5,
        )

    @unchecked
    def _clip_(
        self, found: Found, reducer: Reducer, number: int, begins: bool
    ) -> tuple[Call, Memory]:
        """Carry out steps 1 to 3 of the above; return the next memory."""
        tensors, gradients = self._tensors, found.gradients
        squared_norm = reducer.local_norms(gradients.squared_norms())
        is_due = number >= self.step_to_compare and not self.is_shadow
        if is_due and not self._ranks.has_compared:
            keys, layout = tensors.keys, tensors.layout
            self._ranks.compare_once(keys, layout, squared_norm)
        memory = self._memory.grown(len(tensors.keys))
        step = Step(
            index=number - memory.start,
            squared_norm=squared_norm,
            state=memory.vectors,
            reducer=reducer,
            present=found.present,
            begins=begins,
            tensors=tensors,
            num_nonfinite=memory.num_nonfinite,
            nonfinite=self.nonfinite,
            is_on_gpu=gradients.is_on_gpu,
        )
        if self.nonfinite == "raise":
            refuse_nonfinite(step.norm, tensors.keys, number, reducer)
        decision = Decision(*self.advance(step))
        h, state, done = step.checked(
            decision, memory.quantities, self.largest_h
        )
        if done is not None and h is done.h:
            norm, discard, counts = done.norm, done.discard, done.num_nonfinite
        else:
            norm = step.norm
            h, discard, counts = treat_nonfinite(
                self.nonfinite, h, norm, memory.num_nonfinite
            )
        if not self.is_shadow:
            h = self._scale_(found, step, h, discard)
        return Call(found.present, norm, h), memory.after(state, counts)

    def _scale_(
        self, found: Found, step: Step, h: Tensor, discard: Tensor | None
    ) -> Tensor:
        """Scale in place; return the part of each norm that is left."""
        found.gradients.scale_(h, discard)
        return h

    def _take_back(self) -> None:
        """Return to the state before the step; its numbers can be read."""
        self._steps, self._memory = self._before

    def _static_clip(self, params_grads: Any) -> NoReturn:
        raise RuntimeError(
            f"{type(self).__name__} works on eager tensors, not in a static "
            "graph: leave paddle.enable_static() and dist.to_static out, and "
            "run the optimizer outside of paddle.jit.to_static. A model whose "
            "forward is converted by paddle.jit.to_static is fine"
        )

    _pir_clip = _static_clip
