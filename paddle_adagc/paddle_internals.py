# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where clips and optimizers meet Paddle's own machinery.

Two of Paddle's tools must not look into them: ``paddle.jit.to_static``, which
simulates the bytecode of every function that a training step calls, and fails
in ours; and the search for Inf and NaN, which stops at the infinities that a
clip works with on purpose.

Some facts Paddle does not give to a clip. This file reads them from the
functions that call the clip; no other file does so.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import paddle
from paddle.base import core, framework
from paddle.distributed.auto_parallel.api import _ShardOptimizer
from paddle.distributed.communication.group import Group
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2 as stage_2,
)
from paddle.nn.clip import ClipGradBase
from paddle.optimizer import Optimizer

if TYPE_CHECKING:
    from paddle_adagc.clips.progress import Progress

P = ParamSpec("P")
T = TypeVar("T")

_core: Any = core  # without a stub
_CAN_SIMULATE = hasattr(core, "set_eval_frame")
if _CAN_SIMULATE:
    _core.eval_frame_skip_file_prefix((__file__,))

_FLAG = "FLAGS_check_nan_inf"


def unchecked(function: Callable[P, T]) -> Callable[P, T]:
    """Suspend ``FLAGS_check_nan_inf``, which ``enable_tensor_checker`` sets.

    A clip works with infinity (no norm so far) and 0/0 on purpose, and treats
    what gradients hold of it. Everything outside of the clip stays checked.
    In a step within ``auto_cast`` a clip's own numbers stay float32.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        tracer: Any = framework._dygraph_tracer()
        level = getattr(tracer, "_amp_level", _core.AmpLevel.O0)
        is_checked = _core.globals()[_FLAG]
        if level == _core.AmpLevel.O0 and not is_checked:  # set_flags: 12 us
            return function(*args, **kwargs)
        paddle.set_flags({_FLAG: False})
        tracer._amp_level = _core.AmpLevel.O0
        try:
            return function(*args, **kwargs)
        finally:
            tracer._amp_level = level
            paddle.set_flags({_FLAG: is_checked})

    return run


def eager(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function, and all that it calls, as it is, and :func:`unchecked`.

    It then runs between the compiled parts of the training step, as Paddle's
    own clips and optimizers do.
    """
    quiet = unchecked(function)
    if not _CAN_SIMULATE:
        return quiet

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        simulator = _core.set_eval_frame(None)
        try:
            return quiet(*args, **kwargs)
        finally:
            _core.set_eval_frame(simulator)

    return run


def refuse_buffers(name: str, value: bool) -> bool:
    """Refuse Paddle's switch for clips over buffers of several tensors."""
    if value:
        raise RuntimeError(
            "AdaGC needs each tensor's own gradient, and the buffers of FSDP "
            "and of auto-parallel's tensor fusion join several: use "
            "shard_optimizer with a sharding stage, or fleet's sharding"
        )
    return value


class EagerClip(ClipGradBase):
    """A clip of eager tensors, and what others set on an optimizer's clip."""

    # Paddle's auto-parallel:
    mp_group: Group | None
    has_dist_param: bool
    has_not_dist_param: bool
    # ERNIE's pre-training under sharding V2:
    sharding_stage1_v2: bool
    num_params: int
    pname_to_paramindex: dict[str, int]
    stat: dict[str, Any]  # empty, for PaddleFormers' logging of experts

    def _static_clip(self, params_grads: Any) -> Any:
        raise RuntimeError(
            f"{type(self).__name__} works on eager tensors, not in a static "
            "graph: leave paddle.enable_static() and dist.to_static out, and "
            "run the optimizer outside of paddle.jit.to_static. A model whose "
            "forward is converted by paddle.jit.to_static is fine"
        )

    _pir_clip = _static_clip


def _is_called_by(function: Callable[..., Any]) -> bool:
    """Whether a Python function is among the callers."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def makes_states_only() -> bool:
    """Whether this step, with gradients of 0, makes the optimizer's states.

    ``_ShardOptimizer.state_dict`` makes an ordinary step for that.
    """
    return _is_called_by(_ShardOptimizer.state_dict)


def is_in_stage_2() -> bool:
    """Whether the optimizer of sharding stage 2 makes this step.

    It splits the tensors, and neither they nor fleet's topology say so.
    """
    return _is_called_by(stage_2.GroupShardedOptimizerStage2.step)


class Caller(NamedTuple):
    """The optimizer that calls a clip."""

    optimizer: Optimizer
    group: int | None
    """Place of the parameter group among the optimizer's; None: not known."""

    @property
    def number(self) -> int:
        """Number of the optimizer. Unlike an id, no later one gets it again."""
        known = _NUMBERS.get(self.optimizer)
        return known or _NUMBERS.setdefault(self.optimizer, next(_COUNT))


_NUMBERS = weakref.WeakKeyDictionary[Optimizer, int]()
_COUNT = itertools.count(1)


def has_moments(optimizer: Optimizer) -> bool:
    """Whether an optimizer has made steps, or loaded those of a checkpoint.

    Waits for the device, unless the optimizer is new.
    """
    made: Any = optimizer._accumulators
    found = [of_name for name, of_name in made.items() if _is_moment(name)]
    few = [tensor for of_name in found for tensor in of_name.values()][:8]
    for name, tensor in optimizer._accumulators_holder.items():
        few += [tensor] if _is_moment(name) else []
    return any(bool((abs(x) > 0).any()) for x in few)  # tensors or arrays


def _is_moment(name: str) -> bool:
    """Tell by the name in Paddle's optimizers, which may have a prefix."""
    return "moment" in name or "velocity" in name


_APPLY, _PASS = "_apply_optimize", "_create_optimization_pass"
"""Methods of Paddle's optimizers: one calls the clip, then the other, which
updates the weights."""


def find_caller() -> Caller | None:
    """Find the optimizer in whose step a clip is called; None: in no such.

    Paddle gives a clip the gradients of one parameter group, and nothing else.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != _APPLY:
        frame = frame.f_back
    if frame is None:
        return None
    optimizer = frame.f_locals.get("self")
    if not isinstance(optimizer, Optimizer):
        return None
    if not isinstance(frame.f_locals.get("params_grads"), dict):
        return Caller(optimizer, 0)  # its only group
    above = frame.f_back  # shard_optimizer's step lies between
    while above is not None and "param_group" not in above.f_locals:
        above = above.f_back
    group = above and above.f_locals["param_group"]
    for place, known in enumerate(optimizer._param_groups):
        if known is group:
            return Caller(optimizer, place)
    return Caller(optimizer, None)


def expect_update(caller: Caller, clip: Progress) -> bool:
    """Watch for the update after a clip, as Paddle does not tell of it.

    The optimizer is watched for the rest of this step, and nothing stays with
    it. One that updates the weights by itself (Muon of Paddle 3.4) cannot be
    watched, which gives False: only an error there could skip its update.
    """
    optimizer = caller.optimizer
    kind: Any = type(optimizer)
    if not _makes_pass(kind):
        return False
    update = optimizer.__dict__.setdefault(_PASS, NextUpdate(optimizer))
    if isinstance(update, NextUpdate) and clip not in update.clips:
        update.clips.append(clip)
    return isinstance(update, NextUpdate)


@functools.cache
def _makes_pass(kind: Any) -> bool:
    """Whether a class' method, or its base's that it calls, makes the pass.

    A recorder may stand before the optimizer's: ask the class.
    """
    for cls in kind.__mro__:
        if _APPLY in vars(cls):
            names = inspect.unwrap(vars(cls)[_APPLY]).__code__.co_names
            if _PASS in names or _APPLY not in names:
                return _PASS in names
    return False


@dataclasses.dataclass(eq=False)
class NextUpdate:
    """Stands for an optimizer's update, once."""

    optimizer: Optimizer
    clips: list[Progress] = dataclasses.field(default_factory=list)
    """Those that saw the gradients: one acts, shadows follow."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the update; if there is none, tell the clips."""
        optimizer = self.optimizer
        del optimizer.__dict__[_PASS]
        clips = [clip for clip in self.clips if clip.awaits_update]
        for clip in clips:
            clip.awaits_update = False
        is_made = False
        try:
            result = getattr(optimizer, _PASS)(*args, **kwargs)
            is_made = not optimizer._get_auxiliary_var("found_inf")
        finally:
            for clip in () if is_made else clips:
                clip.take_back()
        return result
