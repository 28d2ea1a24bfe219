# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``Record``: every step of a training, for any loop and any clip."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_integer
from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.integrations.optimizer import (
    caller_group,
    innermost,
    parameters_of,
    put_into_optimizer,
)
from paddle_adagc.record.files import MAX_BYTES, write_part
from paddle_adagc.record.losses import (
    BEFORE_BACKWARD,
    see_losses,
    take_losses,
)
from paddle_adagc.record.ring import Step, Steps, gather, to_host
from paddle_adagc.record.session import Session
from paddle_adagc.record.shadow import (
    bind,
    default_shadow,
    factors_of,
    make_shadow,
    names_of,
)

logger = logging.getLogger(__name__)

NUM_STEPS = 64
"""Steps that stay on the device before they are copied."""


class Record:
    """Record every step of a training in a folder, for ``adagc-report``.

    The optimizer's clip goes on as before, whatever it is. Under a clip of
    Paddle, fleet, or none the norms are measured in one pass over the
    gradients, and a shadow, AdaGC, follows them without changing any.

    The last steps stay on the device and are copied together: no step waits.
    A killed process loses at most its last ``num_steps`` steps. An exception,
    the interpreter's exit and SIGTERM copy them; call :meth:`flush` before a
    checkpoint. In a distributed run every rank makes a record and calls its
    methods; one gather per copy, rank 0 writes.

    Args:
        directory: Folder of the record. A run that is resumed goes on in it.
        optimizer: Any optimizer of Paddle; fleet's wrappers are looked into.
        model: Names the tensors; default: the layer of this process that
            holds the optimizer's parameters.
        shadow: Clip of this package that follows the norms. Default: AdaGC, if
            the optimizer's clip is none of this package. False: none, so that
            nothing is known of tensors under another clip.
        start: Index of the next step. Default: after the record's last one.
        num_steps: Steps between two copies.
        max_bytes: Bound of the per-tensor numbers on the disk, at least 1e6;
            the steps' own numbers take up to 400 bytes a step. See
            :class:`~paddle_adagc.record.files.RecordWriter`.

    Raises:
        FileExistsError: Another process is writing to the record.
        TypeError, ValueError: A wrong argument.

    Example:
        >>> import paddle
        >>> from paddle_adagc import Record
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
        >>> record = Record("runs/a", optimizer, model)
        >>> for _ in range(3):
        ...     loss = model(paddle.ones([3, 4])).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.clear_grad()
        ...     record.step(loss)
        >>> record.close()
        >>> from paddle_adagc.record import read_record
        >>> read_record("runs/a").step.tolist()
        [0, 1, 2]
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        optimizer: Any,
        model: paddle.nn.Layer | None = None,
        *,
        shadow: ClipGradBase | bool | None = None,
        start: int | None = None,
        num_steps: int = NUM_STEPS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.directory = Path(directory)
        self._num_steps = check_integer("num_steps", num_steps, 1)
        check_integer("max_bytes", max_bytes, 10**6)
        if start is not None:
            check_integer("start", start, 0)
        self._optimizer = innermost(optimizer)
        self._acting: Any = _clip_of(self._optimizer)
        self.shadow: TensorScalingClip | None = None
        """The clip that follows; None if the optimizer's own is recorded."""
        if isinstance(shadow, ClipGradBase):
            self.shadow = make_shadow(shadow)
        elif shadow is not False and not self._is_ours:
            self.shadow = make_shadow(default_shadow(self._acting))
        parameters = parameters_of(self._optimizer)
        if self.shadow is not None:
            bind(self.shadow, model, parameters)
        self._names: dict[str, str] = {}
        """Of tensors that the recorded clip has under Paddle's names."""
        if self._source is not None and not self._source._tensors.is_bound:
            self._names = names_of(model, parameters)
        self._steps: list[Step] = []
        self._losses: list[Any] = []
        self._sees_losses = False
        self._session: Session | None = None  # of rank 0
        self._next_step, self._number = self._open(start, max_bytes)
        self.forget_updates()
        self._last_time = time.perf_counter()
        self._end_observing = _observe(self._optimizer, self)
        self._end_exits = _at_exit(self._leave)

    def _open(self, start: int | None, max_bytes: int) -> tuple[int, int]:
        """Open the files on rank 0; return the next step and the session."""
        answer: Any = None
        if dist.get_rank() == 0:
            facts = {
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "clip": _description(self._acting),
                "shadow": self.shadow and _description(self.shadow),
                "optimizer": type(self._optimizer).__name__,
                "num_ranks": dist.get_world_size(),
                "paddle": paddle.__version__,
            }
            try:
                self._session = Session(self.directory, start, facts, max_bytes)
                answer = self._session.start, self._session.number
            except (OSError, ValueError) as error:
                answer = error
        answers = [answer]
        if dist.is_initialized() and dist.get_world_size() > 1:
            answers = []
            dist.all_gather_object(answers, answer)
        if isinstance(answers[0], Exception):
            raise answers[0]
        if answers[0] is None:
            raise RuntimeError(
                "this is not the first rank, and the ranks are not joined: "
                "call paddle.distributed.init_parallel_env() before"
            )
        return answers[0]

    # ---- what the loop calls ------------------------------------------------

    def add_loss(self, loss: Tensor | float) -> None:
        """Add to the loss of the current step.

        Args:
            loss: Scalar, on the device or not.
        """
        if isinstance(loss, Tensor):
            loss = loss.detach()
        self._losses.append(loss)

    def see_losses(self) -> None:
        """Take the loss from the scalars whose ``backward()`` is called.

        Those before each of the optimizer's steps add up. A step that
        :meth:`step` did not finish ends with the next ``backward()``.
        """
        see_losses()
        self._sees_losses = True
        BEFORE_BACKWARD.append(self._finish)

    def _finish(self) -> None:
        """Finish a step, maybe within the next one's backward pass.

        Nothing is gathered there: a pipeline's stages wait for each other.
        """
        if self.has_update:
            self._end_step({})

    def step(
        self,
        loss: Tensor | float | None = None,
        **numbers: float | list[int],
    ) -> None:
        """Finish a step; call it after the optimizer's.

        Args:
            loss: Scalar, on the device or not; None: as added, or unknown.
            **numbers: More of the step, as JSON values: ``samples=[640, 704]``.
        """
        if loss is not None:
            self.add_loss(loss)
        self._end_step(numbers)
        if len(self._steps) >= self._num_steps:
            self.flush()

    def _end_step(self, numbers: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        rate = float(self._optimizer.get_lr())
        row = {"learning_rate": rate, "seconds": now - self._last_time}
        snapshot = acting = None
        if self.has_update and self._source is not None:
            snapshot = self._source.snapshot()
            if self.shadow is not None and self._is_ours:
                acting = self._acting.snapshot()
        self.forget_updates()
        step = Step(self._next_step, {**row, **numbers}, self._losses)
        step.snapshot, step.acting = snapshot, acting
        self._steps.append(step)
        self._losses, self._last_time = [], now
        self._next_step += 1

    @property
    def has_update(self) -> bool:
        """Whether the optimizer has made a step since the last :meth:`step`."""
        if self._source is None:
            return self._was_called
        return self._num_updates() != self._seen

    def forget_updates(self) -> None:
        """Take the state of the recorded clip for that of now."""
        self._seen, self._was_called = self._num_updates(), False

    def flush(self) -> list[str]:
        """Copy the steps from the device and write them; every rank calls it.

        Returns:
            A line for each event that began in these steps; on rank 0 alone.
        """
        steps, self._steps = self._steps, []
        if not steps:
            return []
        mine = to_host(steps, self._source)
        return self._write(gather(mine, self._source))

    def _write(self, steps: Steps) -> list[str]:
        if self._session is None:
            return []
        is_recorded = self.shadow is None and self._is_ours
        factors = None if is_recorded else factors_of(self._acting)
        keys = [self._names.get(key, key) for key in steps.keys]
        steps = Steps(steps.rows, keys, steps.tensors)
        try:
            lines = self._session.write(steps, factors)
        except OSError as error:  # the training goes on
            warnings.warn(
                f"the record {self.directory} ends before step "
                f"{steps.rows[0]['step']}: {error}",
                stacklevel=2,
            )
            self._session.close()
            self._session = None
            return []
        for line in lines:
            logger.warning("alarm: %s", line)
        return lines

    def worst(self) -> dict[str, Any]:
        """Return the worst of the steps written since the last call.

        On rank 0, as far as they are known: ``h_min_worst``,
        ``shadow_h_min_worst`` and ``global_grad_norm_max``, each with its step
        (``h_min_worst_step``).
        """
        return self._session.worst() if self._session else {}

    def latest(self) -> dict[str, Any]:
        """Return the numbers of the last step written; on rank 0."""
        return self._session.latest() if self._session else {}

    def switch(self) -> TensorScalingClip:
        """Let the shadow clip from the next step on; the other clip rests.

        gamma is known, so no warm-up follows. Every rank calls it, between two
        steps.

        Returns:
            The clip that acts now: save its state from now on.

        Raises:
            RuntimeError: There is no shadow, or it has seen no step.
        """
        if self.shadow is None or not self.shadow.num_steps:
            raise RuntimeError("no shadow has followed a step, so none can act")
        self.flush()
        clip, self.shadow = self.shadow, None
        clip.is_shadow = False
        self._put(clip)
        return clip

    def switch_back(self, clip: ClipGradBase | None) -> None:
        """Let another clip act; the one that acts now follows as a shadow.

        Args:
            clip: Clip for the optimizer; None: no clip.

        Raises:
            RuntimeError: The clip that acts is none of this package.
        """
        if not self._is_ours:
            raise RuntimeError(
                f"{self._acting!r} acts, which cannot follow as a shadow"
            )
        self.flush()
        self.shadow = make_shadow(self._acting)
        self._put(clip)

    def close(self) -> None:
        """Write what is left, and stop recording; every rank calls it."""
        if self._sees_losses:
            self._finish()
        self.flush()
        self._stop()

    # ---- the optimizer and its clip -----------------------------------------

    @property
    def _is_ours(self) -> bool:
        return isinstance(self._acting, TensorScalingClip)

    @property
    def _source(self) -> TensorScalingClip | None:
        """The clip whose numbers are recorded."""
        if self.shadow is not None:
            return self.shadow
        return self._acting if self._is_ours else None

    def _num_updates(self) -> int:
        return self._source.num_steps if self._source is not None else 0

    def _put(self, clip: ClipGradBase | None) -> None:
        put_into_optimizer(self._optimizer, clip)
        self._acting = clip
        self.forget_updates()

    def _follow(self, pairs: Any) -> None:
        """Show the shadow an update's gradients; its errors end it alone."""
        if len(self._steps) >= self._num_steps:
            self.flush()
        self._was_called = True
        if self._sees_losses:
            self._losses += take_losses()
        if self.shadow is None:
            return
        try:
            self.shadow(pairs["params"] if isinstance(pairs, dict) else pairs)
        except Exception as error:
            warnings.warn(
                f"the record goes on without the tensors: {error}",
                stacklevel=2,
            )
            self.shadow = None
            for step in self._steps:
                step.snapshot = step.acting = None
            self.forget_updates()
            self._was_called = True

    # ---- the end ------------------------------------------------------------

    def _leave(self) -> None:
        """Write this rank's steps, without the others, who may be gone."""
        self._finish()
        steps, self._steps = self._steps, []
        if steps:
            mine = to_host(steps, self._source)
            self._write(mine)
            if self._session is None and mine.keys:
                numbers = np.array([row["step"] for row in mine.rows])
                named = {"steps": numbers, "keys": np.array(mine.keys, "U")}
                arrays = {**named, **mine.tensors}
                rank = dist.get_rank()
                write_part(self.directory, rank, self._number, arrays)
        self._stop()

    def _stop(self) -> None:
        self._end_observing()
        self._end_exits()
        if self._sees_losses:
            self._sees_losses = False
            BEFORE_BACKWARD.remove(self._finish)
        if self._session is not None:
            self._session.close()
            self._session = None


def _clip_of(optimizer: Any) -> Any:
    """Return the clip of an optimizer; that of a group where there are some."""
    for group in optimizer._param_groups:
        if isinstance(group, dict) and group.get("grad_clip") is not None:
            return group["grad_clip"]
    return optimizer._grad_clip


def _description(clip: Any) -> str:
    return str(clip) if clip is not None else "none"


def record_of(optimizer: Any) -> Record | None:
    """Return the record that an optimizer's steps go to, if there is one."""
    observed = vars(innermost(optimizer)).get("_apply_optimize")
    return getattr(observed, "record", None)


def _observe(optimizer: Any, record: Record) -> Callable[[], None]:
    """Show each update's gradients, before the clip; return how to end it."""
    original = optimizer._apply_optimize

    # A clip that is called within looks for a function of this name, and for
    # these variables of it and of its caller: see guards.find_caller().
    def _apply_optimize(
        loss: Any,
        startup_program: Any,
        params_grads: Any,
        param_group_idx: int = 0,
    ) -> Any:
        self, param_group = optimizer, caller_group()
        record._follow(params_grads)
        result = original(loss, startup_program, params_grads, param_group_idx)
        del self, param_group
        return result

    _apply_optimize.record = record  # type: ignore[attr-defined]
    optimizer.__dict__["_apply_optimize"] = _apply_optimize

    def end() -> None:
        if optimizer.__dict__.get("_apply_optimize") is _apply_optimize:
            del optimizer.__dict__["_apply_optimize"]

    return end


def _at_exit(leave: Callable[[], None]) -> Callable[[], None]:
    """Call ``leave`` at the interpreter's end and at SIGTERM."""
    method = weakref.WeakMethod(leave)

    def call() -> None:
        if (function := method()) is not None:
            with contextlib.suppress(Exception):
                function()

    def handle(number: int, frame: FrameType | None) -> None:
        call()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    atexit.register(call)
    in_main = threading.current_thread() is threading.main_thread()
    is_default = in_main and (
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if is_default:
        signal.signal(signal.SIGTERM, handle)

    def end() -> None:
        atexit.unregister(call)
        if is_default and signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return end
