# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ``grad_clip`` contract that all norm-based clips share.

Which tensors take part, when a step begins and what happens to Inf and NaN is
the same for all of them; the rule that gives ``h`` is the subclass's.
"""

from __future__ import annotations

import abc
import sys
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

import paddle
from paddle import Tensor
from paddle.distributed.communication.group import Group
from paddle.optimizer import Optimizer

from paddle_adagc import rule
from paddle_adagc.clips.gradients import (
    GradientList,
    NonFinite,
    refuse_nonfinite,
)
from paddle_adagc.clips.metrics import Call
from paddle_adagc.clips.stateful import Decision, State, StatefulClip
from paddle_adagc.guards import eager, unchecked
from paddle_adagc.kernels.pairs import KnownPairs
from paddle_adagc.parallel.layout import unfold
from paddle_adagc.parallel.reduce import (
    Reducer,
    any_is_distributed,
    fuses_tensors,
    get_unique_process_mesh_map,
    makes_states_only,
)

Pairs = list[tuple[Tensor, Tensor | None]]
"""Parameters, and gradients or None."""

_PASS = "_create_optimization_pass"
"""The method of Paddle's optimizers that updates the weights."""


def on_skipped_update(take_back: Callable[[], None]) -> None:
    """Call ``take_back`` if the optimizer that is calling makes no update.

    The next update is watched, no other, and nothing stays with the optimizer.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_code.co_name != "_apply_optimize":
        frame = frame.f_back
    optimizer = frame.f_locals.get("self") if frame else None
    if not isinstance(optimizer, Optimizer) or _PASS in optimizer.__dict__:
        return

    def update(*args: Any, **kwargs: Any) -> Any:
        del optimizer.__dict__[_PASS]
        try:
            result = getattr(optimizer, _PASS)(*args, **kwargs)
        except BaseException:
            take_back()
            raise
        if optimizer._get_auxiliary_var("found_inf") is True:
            take_back()
        return result

    optimizer.__dict__[_PASS] = update


class TensorScalingClip(StatefulClip, abc.ABC):
    """A ``grad_clip`` that multiplies each tensor's gradient by its own ``h``.

    Parameters with ``need_clip=False`` and pairs without a gradient pass
    through untouched, in their places. Gradients are scaled in place, as
    ``paddle.nn.ClipGradByGlobalNorm`` does, and without waiting for the device.

    An optimizer calls its clip once per parameter group, and a tensor that is
    seen again begins a step. A step that ``paddle.amp.GradScaler`` skips for an
    overflow, or whose update fails, leaves step count and state as they were.
    """

    _keeps_one_state = False
    """The rule's state is about all tensors: one call has to hold them all."""

    _step_to_compare = 1
    """From this step on the clip compares its norms with other ranks', once."""

    _needs_whole_tensors = False
    """The rule cannot work on a rank's part of a tensor."""

    def __init__(self, *, nonfinite: NonFinite = "zero") -> None:
        super().__init__(nonfinite=nonfinite)
        self.sharding_group: Group | None = None  # set by tensor fusion
        self._leaves_out: Callable[[str], bool] | None = None
        """Whether the tensor of a key is not clipped; None: all are."""

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
    def _advance(self, step: int, norm: Tensor, state: State) -> Decision:
        """Decide about one call; change nothing.

        ``step`` counts from 0 or :meth:`restart_warmup`. ``norm``, float32
        ``[num_tensors]``, is over all tensors known so far, 0 for those without
        a gradient in this call. ``state`` has start values for new tensors.
        ``h`` is of no consequence where the norm is not finite.
        """

    def _fused_advance(
        self, step: int, squared_norm: Tensor, state: State
    ) -> tuple[Tensor, Tensor, Tensor | None, State] | None:
        """Return norm, ``h``, what to discard, and the rule's state.

        All by one kernel; None: there is none for this step.
        """
        return None

    def _treat_nonfinite(
        self, h: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Count lost tensors; return ``h``, and which to discard, if any."""
        if self.nonfinite == "raise":
            return h, None
        finite = paddle.isfinite(norm)
        lost = paddle.logical_not(finite)
        self._num_lost = self._lost_so_far() + lost.astype("int32")
        if self.nonfinite == "propagate":
            return paddle.where(finite, h, paddle.ones_like(h)), None
        return paddle.where(finite, h, paddle.zeros_like(h)), lost

    def _scale_(
        self,
        gradients: GradientList,
        found: KnownPairs,
        norm: Tensor,
        h: Tensor,
    ) -> Tensor:
        """Scale in place; return the part of each norm that is left."""
        h, discard = self._treat_nonfinite(h, norm)
        gradients.scale_(h, discard)
        return h

    @eager
    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: Pairs) -> Pairs:
        """Clip the gradients of one call in place, and return the pairs.

        1. Measure every gradient, and sum its squared norm over the ranks that
           hold parts of the tensor.
        2. Let the rule turn the norms into factors ``h`` and its next state.
        3. Multiply every gradient by its ``h``; treat non-finite ones.
        4. Take over step count and state: a step happens, or it does not. If
           the optimizer then makes no update, take them back.
        """
        pairs = list(params_grads)
        if pairs and isinstance(pairs[0], Tensor):
            raise TypeError(
                f"{type(self).__name__} takes pairs of parameter and gradient, "
                "not parameters: give it to an optimizer as grad_clip"
            )
        found = self._read(pairs) or self._look_up(pairs)
        if found is None:
            return pairs
        reducer = self._known_reducer()
        if not self._ranks.has_agreed:
            self._ranks.agree()
        if not found.pairs and not reducer.communicates:
            self._steps = self._steps.after_empty_group()
            return pairs
        steps = self._steps.after(found.slots, self._keeps_one_state)
        if steps.is_irregular and not self._steps.is_irregular:
            warnings.warn(
                f"{type(self).__name__} was called for some tensors more often "
                "than for others, as by two optimizers (a GAN): each call "
                "counts as a step. Give each optimizer its own clip",
                stacklevel=4,
            )
        call, state = self._clip_(steps.num_steps - 1, found, reducer)
        begins_step = steps.num_steps > self._steps.num_steps
        if begins_step:
            self._before_step = self._steps, self._vectors
        if steps.seen is not self._steps.seen:
            self._observed.update(call.slots)
        self._calls = [call] if begins_step else [*self._calls, call]
        self._steps, self._vectors = steps, state
        on_skipped_update(self._take_back)
        return pairs

    @unchecked
    def _clip_(
        self, step: int, found: KnownPairs, reducer: Reducer
    ) -> tuple[Call, State]:
        """Carry out steps 1 to 3 of the above; return the rule's next state."""
        table, present, segments = self._table, found.slots, None
        if table.cuts:
            self._ranks.refuse_shuffled()
            segments, present = table.cuts.find(
                found, self._ranks.topology(), self._leaves_out
            )
        in_order = found.gradients
        if found.descriptors is None:
            index = table.cuts.index if table.cuts else range(len(table.keys))
            in_order = [None] * len(index)
            for slot, (_, gradient) in zip(
                found.slots, found.pairs, strict=True
            ):
                in_order[index[slot]] = gradient
        gradients = GradientList(in_order, segments, found.descriptors)
        squared_norm = reducer.local_norms(gradients.squared_norms())
        if step >= self._step_to_compare and not self._ranks.has_compared:
            self._ranks.compare(table.keys, table.layout, squared_norm)
        state, age = self._current(), step - self._warmup_start
        num_lost, fused = self._num_lost, None
        if gradients.is_on_gpu:
            fused = self._fused_advance(age, squared_norm, state)
        try:
            if fused is not None:
                norm, h, discard, state = fused
                gradients.scale_(h, discard)
            else:
                norm = rule.square_root(squared_norm)
                if self.nonfinite == "raise":
                    refuse_nonfinite(norm, table.keys, step, reducer)
                h, state = self._advance(age, norm, state)
                if h.dtype != paddle.float32:  # of a rule with a constant of
                    h = h.astype("float32")  # the default dtype
                h = self._scale_(gradients, found, norm, h)
        except BaseException:
            self._num_lost = num_lost
            raise
        return Call(present, norm, h), state

    def _read(self, pairs: list[Any]) -> KnownPairs | None:
        """Read pairs of known parameters in one pass; None: it cannot be."""
        if (
            self.sharding_group is not None
            or self._ranks.in_buffers
            or get_unique_process_mesh_map()
            or self._leaves_out
        ):
            return None
        table = self._table
        index = table.cuts.index if table.cuts else None
        length = len(table.keys if index is None else index)
        return table.reader.read(pairs, index, length)

    def _look_up(self, pairs: Pairs) -> KnownPairs | None:
        """Find the pairs to clip; None in a step that only makes states."""
        clipped = [
            (parameter, gradient)
            for parameter, gradient in pairs
            if gradient is not None
            and getattr(parameter, "need_clip", True) is not False
        ]
        if self._ranks.in_buffers:
            clipped = unfold(clipped, self._ranks.in_buffers)
        leaves_out, keys_of = self._leaves_out, self._table.keys_of
        if leaves_out is not None:
            clipped = [
                (parameter, gradient)
                for parameter, gradient in clipped
                if not all(map(leaves_out, keys_of(parameter)))
            ]
        if self.sharding_group is not None or any_is_distributed(clipped):
            if makes_states_only():
                return None
            clipped = self._local_pairs(clipped)
        parameters = [parameter for parameter, _ in clipped]
        slots = self._slots(parameters)
        self._table.reader.remember(parameters, slots)
        return KnownPairs(clipped, slots, [], None)

    def _local_pairs(
        self, pairs: list[tuple[Tensor, Tensor]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return parameters and local gradients, under auto-parallel."""
        meshes = self._ranks.use_meshes()
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

    def _take_back(self) -> None:
        """Return to the state before the step; its numbers can be read."""
        self._steps, self._vectors = self._before_step

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

    def _static_clip(self, params_grads: Any) -> NoReturn:
        raise RuntimeError(
            f"{type(self).__name__} works on eager tensors, not in a static "
            "graph: leave paddle.enable_static() and dist.to_static out, and "
            "run the optimizer outside of paddle.jit.to_static. A model whose "
            "forward is converted by paddle.jit.to_static is fine"
        )

    _pir_clip = _static_clip
