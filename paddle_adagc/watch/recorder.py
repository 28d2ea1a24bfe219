# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``Record``: every step of a training, for any loop and any clip."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import paddle
from paddle import Tensor
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_choice, check_integer
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.parallel.agreement import of_all_ranks
from paddle_adagc.watch.alarms import OnAlarm
from paddle_adagc.watch.clips import Clips
from paddle_adagc.watch.guard import AtExit, described
from paddle_adagc.watch.losses import (
    RECORDS,
    know_optimizers,
    scalar,
    see_losses,
)
from paddle_adagc.watch.measure import check_numbers
from paddle_adagc.watch.observe import check_stepping, observe, stepping
from paddle_adagc.watch.recording import CLOSE_SECONDS, Recording
from paddle_adagc.watch.ring import Ring
from paddle_adagc.watch.skip import MOST_IN_A_ROW, Skipper
from paddle_adagc.watch.store import MAX_BYTES

NUM_STEPS = 64
"""Most steps that stay on the device before they are copied."""


class Record(Recording):
    """Record every step of a training in a folder, for ``adagc-report``.

    The optimizer's clip goes on as before, whatever it is. Under a clip of
    Paddle, fleet, or none the norms are measured in one pass over the
    gradients, and a shadow, AdaGC, follows them without changing any.

    The last steps stay on the device and are copied together, after at most
    ``num_steps`` or about a minute: no step waits. A thread judges and writes
    them. A killed process loses what was not copied and written. An exception,
    the interpreter's exit and SIGTERM copy it, and the record says which it
    was. In a distributed run every rank makes a record and calls its methods;
    one gather per copy, rank 0 writes.

    An error of observing ends the record, with a warning that names its cause,
    and never the training. A rank whose record has failed takes part in what
    all ranks do, with gradients of 0, and tells the others at the next copy,
    where all end theirs. (Not if it fails between two of the sums that a shadow
    needs in one step: then the others wait.) A disk that refuses is tried
    again.

    Args:
        directory: Folder of the record. If it holds one, this run gets
            ``directory-2``, or the next that is free, unless ``start`` is
            given.
        optimizer: Any optimizer of Paddle; fleet's wrappers are looked into.
        model: Names the tensors; default: the layer of this process that
            holds the optimizer's parameters.
        shadow: Clip of this package that follows the norms. Default: AdaGC, if
            the optimizer's clip is none of this package, or its parameter
            groups have several. False: none, so that nothing is known of
            tensors under another clip.
        start: Steps that a resumed run has made before; it goes on in the
            newest of these folders, and its steps supersede what was recorded
            after them.
        num_steps: Most steps between two copies.
        max_bytes: Bound of the per-tensor numbers on the disk, at least 1e6;
            the steps' own numbers take about 400 bytes a step.
        on_alarm: Called by rank 0's thread with a line for each event, or a
            command of the shell that gets it on its standard input. One line
            for each kind of event and hour. They are also in the log.
        skip_above: Leave a step out whose global norm, or whose loss, is more
            than so many deviations above the median of the last 128, or holds
            Inf or NaN: weights, moments and the clip's state stay as they are,
            on all ranks. The first 64 steps are judged for Inf and NaN alone;
            after 16 such steps in a row the next is made. The loss takes part
            if :meth:`add_loss` gets it before the optimizer's step. It works
            with every clip, and costs one more pass over the gradients and one
            wait for the device in each step: the decision is made on the host.
            The idea is that of OLMo-core's ``SkipStepOptimizer``. None: every
            step is made.
        stop_on: ``"nan"``: set :attr:`should_stop` once a loss is not finite.

    Raises:
        TypeError, ValueError: A wrong argument; with ``skip_above`` also an
            optimizer that cannot be stopped (LBFGS, whose step has several
            updates), or no norms (``shadow=False`` beside another clip). With
            ``skip_above`` or a shadow: auto-parallel's tensor fusion, or the
            optimizer within ``shard_optimizer``'s.

    Example:
        >>> import paddle
        >>> from paddle_adagc.watch import Record, read_record
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
        >>> read_record(record.directory).step.tolist()
        [1, 2, 3]
    """

    num_losses = 1
    """How many times a step's loss the sum of what it differentiates is."""

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
        on_alarm: OnAlarm = None,
        skip_above: float | None = None,
        stop_on: Literal["nan"] | None = None,
    ) -> None:
        check_integer("num_steps", num_steps, 1)
        check_integer("max_bytes", max_bytes, 10**6)
        if start is not None:
            check_integer("start", start, 0)
        if isinstance(optimizer, paddle.nn.Layer):
            raise TypeError(
                f"the optimizer is a {type(optimizer).__name__}: write "
                "Record(directory, optimizer, model)"
            )
        if stop_on is not None:
            check_choice("stop_on", stop_on, ("nan",))
        refusal: Exception | None = None
        skipper = None
        try:
            clips = Clips(optimizer, shadow, model)
            if skip_above is not None:
                skipper = Skipper(skip_above, clips)
            seen = stepping(optimizer)
            if skipper is not None or clips.shadow is not None:
                check_stepping(seen)
        except Exception as error:
            refusal = error
        for its in of_all_ranks(refusal):  # maybe of one rank alone
            if its is not None:
                raise its
        ring = Ring(start or 0, num_steps)
        super().__init__(clips, ring, skipper, stop_on is not None)
        self._open(Path(directory), start, max_bytes, on_alarm)
        if clips.shadow is not None:
            clips.shadow._follows = True
        self.forget_updates()
        self._ends.callback(AtExit(self._leave).end)
        self._ends.callback(observe(seen, self))

    @property
    def start(self) -> int:
        """Steps that were made before this process."""
        return self._ring.start

    @property
    def shadow(self) -> ClipGradByAdaGC | None:
        """The clip that follows; None if the optimizer's own is recorded."""
        return self._clips.shadow if self.error is None else None

    @property
    def num_skipped(self) -> int:
        """Steps that this process has left out."""
        return self._skipper.num_skipped if self._skipper is not None else 0

    @property
    def is_lost(self) -> bool:
        """Whether a loss that is not finite is not left out any more.

        After 16 such steps in a row, or if it has failed on another rank.
        """
        skipper = self._skipper
        if skipper is not None and skipper.num_in_a_row < MOST_IN_A_ROW:
            return False
        loss = self._try(self._newest_loss)
        return loss is not None and not math.isfinite(loss)

    @property
    def name(self) -> str:
        """The optimizer and the model, in words."""
        return self._clips.name

    def add_loss(self, loss: Tensor | float) -> None:
        """Add to the loss of the current step.

        Args:
            loss: Scalar, on the device or not.

        Raises:
            TypeError: It is none.
        """
        taken = self._try(scalar, loss, raises=(TypeError,))
        if taken is not None:
            self._update.losses.append(taken)
            self._ring.last_loss = taken

    def see_losses(self) -> None:
        """Take the loss from the scalars whose ``backward()`` is called.

        Those that reached the optimizer's parameters before a step add up;
        ``clear_grad()`` leaves out those before it. A step that :meth:`step`
        did not finish ends with the next ``backward()`` or update.
        """
        self._try(see_losses)
        self._try(know_optimizers)
        RECORDS.add(self)

    def count_by(self, counter: Callable[[], int]) -> None:
        """Number steps as a Trainer does, which may leave numbers out.

        Args:
            counter: Returns the steps made so far, such as ``global_step``.
        """
        self._ring.counter = counter

    def shares_loss(self, other: Record) -> None:
        """Note that another optimizer takes the same loss.

        Args:
            other: Its record.
        """
        if other is not self and other.name not in self._clips.shared:
            self._clips.shared.append(other.name)
            self._try(self._tell)

    def step(
        self,
        loss: Tensor | float | None = None,
        **numbers: Any,
    ) -> None:
        """Finish a step; call it after the optimizer's.

        Args:
            loss: Scalar, on the device or not; None: as added, or unknown.
            **numbers: More of the step, as JSON values: ``samples=[640, 704]``.
                Floats, those of lists too, are kept with nine digits.

        Raises:
            TypeError: The loss is no scalar, or a number no JSON value.
            ValueError: One has a name of the record's own.
        """
        self._try(check_numbers, numbers, raises=(TypeError, ValueError))
        if loss is not None:
            self.add_loss(loss)
        self._end_step(numbers)
        if self._is_due():
            self.flush()

    def sync(self, seconds: float = CLOSE_SECONDS) -> None:
        """Put all steps so far on the disk; every rank calls it, and waits.

        Args:
            seconds: How long the disk may take.

        Raises:
            Exception: What ended the record, or why the disk has not all
                steps: on all ranks the error of the first that has one.
        """
        if self._pid != os.getpid():
            return
        self.flush()
        failure = self.error
        if failure is None and self._writer is not None and not self._is_over:
            failure = self._writer.sync(seconds)
        for error in of_all_ranks(failure):
            if error is not None:
                raise error

    @property
    def alarms(self) -> list[Any]:
        """All events so far; on rank 0 alone."""
        return [*self._writer.alarms.events] if self._writer else []

    def worst(self) -> dict[str, Any]:
        """Return the worst of the steps copied since the last call.

        On rank 0: ``alarms``, the number of events that were found; and as far
        as they are known ``h_min_worst``, ``shadow_h_min_worst`` and
        ``global_grad_norm_max``, each with its step (``h_min_worst_step``).
        """
        return self._try(self._ring.unlogged.take, len(self.alarms)) or {}

    def latest(self) -> dict[str, Any]:
        """Return the numbers of the last step copied; on rank 0."""
        return self._ring.unlogged.latest

    def switch(self) -> ClipGradByAdaGC:
        """Let the shadow clip from the next step on; the other clip rests.

        gamma is known, so no warm-up follows. Every rank calls it, between two
        steps.

        Returns:
            The clip that acts now: save its state from now on.

        Raises:
            RuntimeError: There is no shadow, it has seen no step, or the record
                has ended, and with it what the shadow sees.
        """
        self.flush()
        if self.error is not None or self._is_over:
            raise RuntimeError(
                "the record has ended, and its shadow saw no step since"
            ) from self.error
        clip = self._clips.switch()
        self._try(self._begin_session)
        return clip

    def close(self) -> None:
        """Write what is left, and stop recording; every rank calls it."""
        if self._pid != os.getpid():
            return
        if self in RECORDS:
            self._finish()
        self.flush()
        self._stop("finished", "", CLOSE_SECONDS)

    def leave(self, error: BaseException) -> None:
        """Write this rank's steps, and stop recording.

        It does not ask the other ranks, who may be gone.

        Args:
            error: The exception that ends the run.
        """
        self._leave("exception", described(error))


def record_of(optimizer: Any) -> Record | None:
    """Return the record that an optimizer's steps go to, if there is one."""
    observed = vars(stepping(optimizer)).get("_apply_optimize")
    return getattr(observed, "record", None)
