# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ``grad_clip`` contract that all norm-based clips share.

A norm-based clip multiplies each tensor's gradient by one number ``h``. Which
tensors take part, when a step begins and what happens to Inf and NaN is the
same for all of them and stands here; the rule that gives ``h`` is the
subclass's. What can be read between two steps stands in
:mod:`paddle_adagc.clips.stateful`.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import paddle
from paddle import Tensor
from paddle.distributed.communication.group import Group

from paddle_adagc import rule
from paddle_adagc.clips.gradients import GradientList, NonFinite
from paddle_adagc.clips.memory import Call, Kept
from paddle_adagc.clips.stateful import StatefulClip
from paddle_adagc.guards import eager, unchecked
from paddle_adagc.parallel.auto import (
    any_is_distributed,
    fuses_tensors,
    makes_states_only,
)


class TensorScalingClip(StatefulClip, abc.ABC):
    """A ``grad_clip`` that multiplies each tensor's gradient by its own ``h``.

    Parameters with ``need_clip=False`` and pairs without a gradient pass
    through untouched, in their places. Gradients are scaled in place, as
    ``paddle.nn.ClipGradByGlobalNorm`` does, and without waiting for the device.

    An optimizer with parameter groups calls its clip once per group. A clip
    that groups share begins a new step when it sees a tensor again, so it
    counts optimizer steps. As with ``paddle.nn.ClipGradByGlobalNorm``, a
    *global* norm then covers one group at a time: to clip by the norm over all
    tensors use one group, and ``apply_decay_param_fun`` where weight decay
    differs.

    Where ranks exchange norms all of them need the same groups, and every group
    needs a gradient on every rank in every step: a rank without one could not
    count the same steps, and raises a RuntimeError. The clip does not notice a
    rank whose optimizer lacks a group, as on a pipeline stage without
    embeddings.

    An optimizer that trains disjoint sets of tensors in successive steps
    (alternating blocks) looks like one with groups: give each set a clip.

    Args:
        nonfinite: Treatment of a tensor whose gradient holds Inf or NaN, or
            whose float32 norm overflows. ``"zero"``: its gradient becomes 0.
            ``"raise"``: FloatingPointError that names the tensors, before
            anything is changed; waits for the device and, where ranks hold
            different tensors, for all ranks: one all-reduce of one number in
            every step. ``"propagate"``: its gradient is left as it is. The
            event is counted on the device.
            ``paddle.amp.GradScaler`` calls the clip in the steps that it skips
            for an overflow as well: do not combine it with ``"raise"``.

    Raises:
        ValueError: ``nonfinite`` is none of these.
    """

    _keeps_one_state = False
    """The rule's state is about all tensors: one call has to hold them all."""

    _step_to_compare = 1
    """From this step on the clip compares its norms with other ranks', once."""

    num_warmup_steps = 0
    """Steps in which the rule goes by the step count."""

    _needs_whole_tensors = False
    """The rule cannot work on a rank's part of a tensor."""

    def __init__(self, *, nonfinite: NonFinite = "zero") -> None:
        super().__init__(nonfinite=nonfinite)
        self.sharding_group: Group | None = None  # set by tensor fusion

    @property
    def should_comm_on_shard_dim(self) -> bool:
        """Paddle's switch for clips over fused buffers."""
        return self.sharding_group is not None

    @should_comm_on_shard_dim.setter
    def should_comm_on_shard_dim(self, value: bool) -> None:
        if value and not fuses_tensors():
            raise RuntimeError(
                f"{type(self).__name__} needs each tensor's own gradient, and "
                "FSDP's buffers join several: use shard_optimizer with a "
                "sharding stage, or fleet's sharding"
            )
        if value and not self._table.is_bound:
            raise RuntimeError(
                f"{type(self).__name__} needs to know the model under tensor "
                "fusion, where a rank has slices of some tensors: call "
                "clip.bind(model) before the first step"
            )

    @abc.abstractmethod
    def _advance(
        self, step: int, norm: Tensor, kept: Kept
    ) -> tuple[Tensor, Kept]:
        """Apply the rule to one call's norms; change nothing.

        Args:
            step: Index of the optimizer step, from 0 or :meth:`restart_warmup`.
            norm: float32 ``[num_tensors]`` over all tensors known so far; 0 for
                those without a gradient in this call.
            kept: What the rule keeps, with start values for new tensors.

        Returns:
            ``h``, float32 ``[num_tensors]``, of no consequence for tensors with
            a non-finite norm; and what the rule keeps from now on.
        """

    def _fused_advance(
        self, step: int, squared_norm: Tensor, kept: Kept
    ) -> tuple[Tensor, Tensor, Tensor | None, Kept] | None:
        """Apply the rule, and treat non-finite norms, in one kernel.

        Returns:
            norm, ``h``, the tensors to discard (None: none), what the rule
            keeps; or None if there is no such kernel for this step.
        """
        return None

    def _scale_(
        self,
        gradients: GradientList,
        pairs: Mapping[int, tuple[Tensor, Tensor]],
        norm: Tensor,
        h: Tensor,
    ) -> Tensor:
        """Scale the gradients in place.

        Args:
            gradients: One per slot.
            pairs: Slot -> parameter and gradient, where there is one.
            norm: float32 ``[num_tensors]``, of the whole tensors.
            h: float32 ``[num_tensors]``.

        Returns:
            The part of each norm that is left, float32 ``[num_tensors]``.
        """
        h, discard = self._nonfinite.treat(h, norm)
        gradients.scale_(h, discard)
        return h

    @eager
    @paddle.no_grad()
    def _dygraph_clip(
        self, params_grads: Sequence[tuple[Tensor, Tensor | None]]
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Clip the gradients of one call in place, and return the pairs.

        1. Measure every gradient, and sum its squared norm over the ranks that
           hold parts of the tensor.
        2. Let the rule turn the norms into factors ``h`` and its next state.
        3. Multiply every gradient by its ``h``; treat non-finite ones.
        4. Take over step count and state: a step happens, or it does not.
        """
        pairs = list(params_grads)
        if pairs and isinstance(pairs[0], Tensor):
            raise TypeError(
                f"{type(self).__name__} takes pairs of parameter and gradient, "
                "not parameters: give it to an optimizer as grad_clip"
            )
        clipped = self._clipped_pairs(pairs)
        if self.sharding_group is not None or any_is_distributed(clipped):
            if makes_states_only():
                return pairs
            clipped = self._local_pairs(clipped)
        reducer = self._known_reducer()
        if not clipped and not reducer.communicates:
            self._steps = self._steps.after_empty_group()
            return pairs
        slots = self._slots([parameter for parameter, _ in clipped])
        steps = self._steps.after(slots, self._why_one_group())
        if steps.is_irregular and not self._steps.is_irregular:
            warnings.warn(
                f"{type(self).__name__} was called for some tensors more often "
                "than for others, as by two optimizers (a GAN): each call "
                "counts as a step. Give each optimizer its own clip",
                stacklevel=4,
            )
        with unchecked():
            norm, h, kept = self._clip_(
                steps.num_steps - 1, dict(zip(slots, clipped, strict=True))
            )
        begins_step = steps.num_steps > self.num_steps
        earlier = [] if begins_step else self._calls
        self._calls = [*earlier, Call(slots, norm, h)]
        self._steps = steps
        self._memory.update(kept)
        self._observed.update(slots)
        return pairs

    def _clip_(
        self, step: int, pairs: Mapping[int, tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor, Kept]:
        """Carry out steps 1 to 3 of the above.

        Args:
            step: Index of the optimizer step.
            pairs: Slot -> parameter and gradient, where there is one.

        Returns:
            norm and ``h``, float32 ``[num_tensors]``; what the rule keeps.
        """
        in_order: list[Tensor | None] = [None] * len(self._table)
        for slot, (_, gradient) in pairs.items():
            in_order[slot] = gradient
        gradients = GradientList(in_order)
        reducer = self._known_reducer()
        squared_norm = reducer.local_norms(gradients.squared_norms())
        if step >= self._step_to_compare:
            self._ranks.compare_once(self._table, squared_norm)
        memory, age = self._memory(), step - self._warmup_start
        num_lost = self._nonfinite.count(len(self._table))
        fused = self._fused_advance(age, squared_norm, memory)
        try:
            if fused is not None:
                norm, h, discard, kept = fused
                gradients.scale_(h, discard)
            else:
                norm = rule.square_root(squared_norm)
                self._nonfinite.refuse(norm, self._table.keys, step, reducer)
                h, kept = self._advance(age, norm, memory)
                h = self._scale_(gradients, pairs, norm, h)
        except BaseException:
            self._nonfinite.update(num_lost)
            raise
        return norm, h, kept

    def _clipped_pairs(
        self, pairs: Sequence[tuple[Tensor, Tensor | None]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the pairs with a gradient that may be clipped."""
        clipped = [
            (parameter, gradient)
            for parameter, gradient in pairs
            if gradient is not None
            and getattr(parameter, "need_clip", True) is not False
        ]
        return self._ranks.unfold(clipped, self._table)

    def _local_pairs(
        self, pairs: list[tuple[Tensor, Tensor]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return parameters and local gradients, under auto-parallel."""
        meshes = self._ranks.meshes
        if self.sharding_group is not None:
            here = meshes.slices(self.sharding_group, pairs)
        else:
            slots = self._slots([parameter for parameter, _ in pairs])
            here = meshes.local_parts(slots, pairs)
        split = meshes.split_slots()
        if self._needs_whole_tensors and split:
            raise ValueError(
                f"{type(self).__name__} needs whole tensors, but a mesh splits "
                f"{len(split)} gradients ({self._table.keys[split[0]]}, ...): "
                "use Replicate placements and no sharding stage"
            )
        return here

    def _slots(self, parameters: Sequence[Tensor]) -> list[int]:
        """Return each parameter's slot, after a look at those that are new."""
        slots = self._table.slots(parameters)
        if not (
            self._table.is_bound
            or self._observed.issuperset(slots)
            or any(parameter.is_dist() for parameter in parameters)
        ):
            self._ranks.check_unbound(parameters)
        return slots

    def _why_one_group(self) -> str:
        if not self._keeps_one_state:
            return ""
        return f"{type(self).__name__} keeps one state for all tensors"

    def _static_clip(self, params_grads: Any) -> NoReturn:
        raise RuntimeError(
            f"{type(self).__name__} works on eager tensors, not in a static "
            "graph: leave paddle.enable_static() and dist.to_static out, and "
            "run the optimizer outside of paddle.jit.to_static. A model whose "
            "forward is converted by paddle.jit.to_static is fine"
        )

    _pir_clip = _static_clip
