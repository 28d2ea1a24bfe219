# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where a record is called: an optimizer's updates, and a process' end."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

from paddle.distributed.auto_parallel.api import _ShardOptimizer

from paddle_adagc.integrations.optimizer import (
    inner_optimizer,
    parameters_of,
)


def stepping(optimizer: Any) -> Any:
    """Return the optimizer whose ``_apply_optimize`` a step calls.

    The innermost one; but ``shard_optimizer``'s makes the step itself, and
    takes from the one inside only how one tensor is updated.
    """
    while not isinstance(optimizer, _ShardOptimizer):
        inner = inner_optimizer(optimizer)
        if inner is None:
            return optimizer
        optimizer = inner
    return optimizer


def model_parameters_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's parameters, as the model has them.

    Inside of fleet's ``fuse_optimizer`` they are buffers that join several.
    """
    original = getattr(optimizer, "_origin_parameter_list", None)
    return original or parameters_of(optimizer)


def caller_group() -> Any:
    """Return the parameter group that the caller's caller works on, if any.

    A function that stands in for an optimizer's ``_apply_optimize`` keeps it in
    a variable ``param_group``, where a clip looks for it.
    """
    return sys._getframe(2).f_locals.get("param_group")


def observe(optimizer: Any, record: Any) -> Callable[[], None]:
    """Show a record each update's gradients, before the clip.

    The update is made only if the record's ``_see`` returns True. ``optimizer``
    is the one whose method a step calls, see :func:`.stepping`.

    Returns:
        What ends it.
    """
    original = optimizer._apply_optimize
    before = vars(optimizer).get("_apply_optimize")  # another record's

    # A clip that is called within looks for a function of this name, and for
    # these variables of it and of its caller: see guards.find_caller().
    def _apply_optimize(
        loss: Any,
        startup_program: Any,
        params_grads: Any,
        param_group_idx: int = 0,
    ) -> Any:
        self, param_group = optimizer, caller_group()
        given = loss, startup_program, params_grads, param_group_idx
        begins = not isinstance(params_grads, dict) or (
            param_group is optimizer._param_groups[0]
        )
        is_made = observed.record is None or record._see(params_grads, begins)
        result = original(*given) if is_made else []
        del self, param_group
        return result

    observed: Any = _apply_optimize
    observed.record = record
    optimizer.__dict__["_apply_optimize"] = observed

    def end() -> None:
        observed.record = None
        if vars(optimizer).get("_apply_optimize") is not observed:
            return  # a later record calls it
        del optimizer.__dict__["_apply_optimize"]
        if before is not None:
            optimizer.__dict__["_apply_optimize"] = before

    return end


class AtExit:
    """Calls a bound method at the interpreter's end and at SIGTERM.

    In this process alone: a forked child has its callers' memory, not their
    files. At SIGTERM all methods are called, if the signal had no handler when
    the first of them came.
    """

    _active: ClassVar[set[AtExit]] = set()

    def __init__(self, leave: Callable[[], None]) -> None:
        self._method, self._pid = weakref.WeakMethod(leave), os.getpid()
        self._active.add(self)
        atexit.register(self._call)
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)

    def _call(self) -> None:
        function = self._method()
        if function is not None and self._pid == os.getpid():
            with contextlib.suppress(Exception):
                function()

    @classmethod
    def _handle(cls, number: int, frame: FrameType | None) -> None:
        for one in [*cls._active]:
            one._call()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    @property
    def is_active(self) -> bool:
        """Whether the end of this process would call the method."""
        return self in self._active and self._pid == os.getpid()

    def end(self) -> None:
        """Call it no longer."""
        self._active.discard(self)
        atexit.unregister(self._call)
        handler = signal.getsignal(signal.SIGTERM)
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and not self._active and handler == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
