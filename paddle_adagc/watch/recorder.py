# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``Record``: every step of a training, for any loop and any clip."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import KnownAttributes, check_choice, check_integer
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.last_step import LastStep
from paddle_adagc.guards import makes_states_only
from paddle_adagc.parallel.agreement import of_all_ranks
from paddle_adagc.watch.clips import Clips
from paddle_adagc.watch.ending import AtExit, described
from paddle_adagc.watch.folder import Opened, open_folder
from paddle_adagc.watch.losses import (
    RECORDS,
    know_optimizers,
    newest_loss,
    scalar,
    see_losses,
    take_losses,
)
from paddle_adagc.watch.measure import add_numbers, check_numbers
from paddle_adagc.watch.observe import observe, stepping, warn_of_blindness
from paddle_adagc.watch.ring import (
    Glance,
    Step,
    Steps,
    Worst,
    count_small,
    is_split,
    join,
    to_gather,
    to_host,
)
from paddle_adagc.watch.shadow import agree, make_shadow
from paddle_adagc.watch.skip import (
    Skipper,
    SkipRule,
    check_stepping,
    largest,
    mean_loss,
    whole,
)
from paddle_adagc.watch.store import MAX_BYTES
from paddle_adagc.watch.writer import OnAlarm, Writer, warn

NUM_STEPS = 64
"""Most steps that stay on the device before they are copied."""

_FIRST_COPY = 8  # steps: then it is known how long one takes
_COPY_SECONDS = 60.0
_CLOSE_SECONDS, _EXIT_SECONDS = 60.0, 10.0


class Record(KnownAttributes):
    """Record every step of a training in a folder, for ``adagc-report``.

    The optimizer's clip goes on as before, whatever it is. Under a clip of
    Paddle, fleet, or none the norms are measured in one pass over the
    gradients, and a shadow, AdaGC, follows them without changing any.

    The last steps stay on the device and are copied together, after at most
    ``num_steps`` or about a minute: no step waits. A thread judges and writes
    them. A killed process loses at most what was not copied. An exception, the
    interpreter's exit and SIGTERM copy it, and the record says which it was. In
    a distributed run every rank makes a record and calls its methods; one
    gather per copy, rank 0 writes.

    An error of observing ends the record, with a warning that names its cause,
    and never the training: a rank whose record has failed tells the others at
    the next copy, and all end theirs. A disk that refuses is tried again.

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
            the steps' own numbers take up to 400 bytes a step.
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

    should_stop: str
    error: Exception | None
    start: int

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
        self._num_steps = check_integer("num_steps", num_steps, 1)
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
        self._stop_on = stop_on
        self._stepping: Any = stepping(optimizer)
        self._clips = clips = Clips(optimizer, shadow, model)
        self._optimizer = clips.optimizer
        self._shared: set[str] = set()  # names of others with the same loss
        self._skipper: Skipper | None = None
        if skip_above is not None:
            self._skipper = Skipper(
                skip_above, self._stepping, clips.source, clips.acting
            )
        if skip_above is not None or self.shadow is not None:
            check_stepping(self._stepping)
        self.should_stop = ""
        """With ``stop_on``: why training should end; the same on all ranks, as
        of the last copy of the steps. Empty: it should not."""
        self.error = None
        """Why the record ended early."""
        self._how: tuple[str, str] | None = None  # the run ends
        self._pid = os.getpid()
        self._is_over = False  # on all ranks, or closed
        self._steps: list[Step] = []
        self._losses: list[Any] = []
        self._last_loss: Any = None
        self._rate: float | None = None  # of the update
        self._skipped: LastStep | None = None  # of a step that is left out
        self._sees_losses = self._has_seen = False
        self._counter: Callable[[], int] | None = None
        self._glance, self._worst = Glance(), Worst()
        self._writer: Writer | None = None  # of rank 0
        opened = self._open(Path(directory), start, max_bytes, on_alarm)
        self.start, self._directory = opened.start, opened.directory
        """Steps that were made before this process."""
        self._last_step = self.start
        self._num_pending, self._num_between = 0, min(num_steps, _FIRST_COPY)
        if self._skipper is not None:
            self._skipper.rule = SkipRule(skip_above or 0.0, opened.history)
        if self.shadow is not None:
            make_shadow(self.shadow)
        self.forget_updates()
        self._last_time = time.perf_counter()
        self._end_observing = observe(self._stepping, self)
        self._at_exit = AtExit(self._leave_at_exit)

    def _open(
        self,
        directory: Path,
        start: int | None,
        max_bytes: int,
        on_alarm: OnAlarm,
    ) -> Opened:
        """Choose the folder on rank 0, which alone writes."""
        answer: Any = None
        if dist.get_rank() == 0:
            try:
                opened, past = open_folder(directory, start)
                self._writer = Writer(
                    opened.directory,
                    opened.start + 1,
                    self._facts(),
                    max_bytes,
                    on_alarm,
                    past,
                )
                answer = opened
            except (OSError, ValueError) as error:
                answer = error
        answer = of_all_ranks(answer)[0]
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            raise RuntimeError(
                "this is not the first rank, and the ranks are not joined: "
                "call paddle.distributed.init_parallel_env() before"
            )
        opened = answer
        assert isinstance(opened, Opened)
        return opened

    def _facts(self) -> dict[str, Any]:
        found = self._clips.facts()
        return {**found, "shares_loss_with": sorted(self._shared)}

    @property
    def shadow(self) -> ClipGradByAdaGC | None:
        """The clip that follows; None if the optimizer's own is recorded."""
        return self._clips.shadow

    @property
    def directory(self) -> Path:
        """Folder of the record; on rank 0 where it is written."""
        if self._writer is not None:
            return self._writer.directory
        return self._directory

    @property
    def num_skipped(self) -> int:
        """Steps that this process has left out."""
        return self._skipper.num_skipped if self._skipper is not None else 0

    @property
    def name(self) -> str:
        """The optimizer and the model, in words."""
        return self._clips.name

    # ---- what the loop calls ------------------------------------------------

    def add_loss(self, loss: Tensor | float) -> None:
        """Add to the loss of the current step.

        Args:
            loss: Scalar, on the device or not.

        Raises:
            TypeError: It is none.
        """
        taken = self._try(scalar, loss, raises=(TypeError,))
        if taken is not None:
            self._losses.append(taken)
            self._last_loss = taken

    def see_losses(self) -> None:
        """Take the loss from the scalars whose ``backward()`` is called.

        Those that reached the optimizer's parameters before a step add up. A
        step that :meth:`step` did not finish ends with the next ``backward()``
        or update.
        """
        self._try(see_losses)
        self._try(know_optimizers)
        self._sees_losses = True
        RECORDS.append(self)

    def count_by(self, counter: Callable[[], int]) -> None:
        """Number steps by a function that returns the steps made so far.

        Such as a Trainer's ``global_step``, which may leave numbers out.
        """
        self._counter = counter

    def shares_loss(self, other: Record) -> None:
        """Note that another record's optimizer takes the same loss."""
        if other is not self and other.name not in self._shared:
            self._shared.add(other.name)
            if self._writer is not None:
                self._try(lambda w: w.tell(self._facts()), self._writer)

    def _finish(self) -> None:
        """Finish a step, maybe within the next one's backward pass.

        Nothing is gathered there: a pipeline's stages wait for each other.
        """
        if self._try(self._has_stepped, failed=self._was_called):
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

        Raises:
            TypeError: The loss is no scalar, or a number no JSON value.
            ValueError: One has a name of the record's own.
        """
        self._try(check_numbers, numbers, raises=(TypeError, ValueError))
        if loss is not None:
            self.add_loss(loss)
        self._end_step(numbers)
        if self._num_pending >= self._num_between:
            self.flush()

    def _end_step(self, numbers: Mapping[str, Any]) -> None:
        """Count a step; also one of a rank whose record has failed.

        So it takes part in the next copy.
        """
        self._try(self._add_step, numbers)
        self._num_pending += 1
        self._losses, self._rate = [], None
        self._was_called, self._skipped = False, None

    def _add_step(self, numbers: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        rate = self._optimizer.get_lr() if self._rate is None else self._rate
        row: dict[str, Any] = {"learning_rate": float(rate)}
        row["step_seconds"] = now - self._last_time
        snapshot = acting = None
        if self._skipped is not None and self._skipper is not None:
            snapshot, row["skipped"] = self._skipped, True
            row["reason"] = self._skipper.reason
        elif self.has_update and self._clips.source is not None:
            snapshot, acting, is_warming_up = self._clips.snapshots()
            self._has_seen = True
            if is_warming_up:
                row["warm_up"] = True
        elif self._overflowed:
            row["overflow"] = True
        self.forget_updates()
        made = self._counter() if self._counter else 0
        self._last_step = max(self._last_step + 1, made)
        step = Step(self._last_step, {**row, **numbers}, self._losses)
        step.snapshot, step.acting = snapshot, acting
        self._steps.append(step)
        self._last_time = now
        if self._writer is not None:
            self._writer.start()
        found = self._glance.step(step, now)
        if found is not None:
            self._see_nonfinite(*found)

    def _see_nonfinite(self, step: int, loss: float) -> None:
        if self._writer is not None:
            self._writer.alarm_nonfinite(step, loss)
        if dist.get_world_size() == 1:
            self._stop_at([(step, loss)])

    def _stop_at(self, found: Sequence[tuple[int, float]]) -> None:
        if self._stop_on and found and not self.should_stop:
            step, loss = min(found)
            self.should_stop = f"the loss of step {step} is {loss}"

    def _has_stepped(self) -> bool:
        return self.has_update or self._overflowed

    @property
    def has_update(self) -> bool:
        """Whether the optimizer has made a step since the last :meth:`step`."""
        if self._clips.source is None or self._skipped is not None:
            return self._was_called
        return self._clips.num_updates != self._seen

    @property
    def _overflowed(self) -> bool:
        """Whether a ``GradScaler`` has left out the update of this step."""
        overflow = self._optimizer._get_auxiliary_var("found_inf") is True
        return self._was_called and overflow

    def forget_updates(self) -> None:
        """Take the state of the recorded clip for that of now."""
        self._seen, self._was_called = self._clips.num_updates, False
        self._skipped = None

    def flush(self) -> None:
        """Copy the steps from the device; every rank calls it.

        A thread of rank 0 writes them.
        """
        if not self._num_pending or self._is_over or self._pid != os.getpid():
            return
        mine = self._try(self._copy)
        self._num_pending = 0
        parts = self._ask(self._gather, mine) or []
        failed = [
            f"rank {i}: {x}" for i, x in enumerate(parts) if isinstance(x, str)
        ]
        if failed or not parts:
            self._is_over = True
            self._end(RuntimeError("".join(failed[:1])), "rank")
            return
        self._stop_at([part.nonfinite for part in parts if part.nonfinite])
        self._try(self._pass_on, parts)

    def _gather(self, mine: Steps | None) -> list[Steps | str]:
        """Return the steps of all ranks, or why a rank's record ends."""
        return of_all_ranks(_cause(self.error) if mine is None else mine)

    def _copy(self) -> Steps:
        """Copy this rank's steps from the device."""
        if self._writer is not None and self._writer.error is not None:
            raise self._writer.error
        self._warn_if_blind(len(self._steps))
        num_small = count_small(self._optimizer)
        clips = self._clips
        mine = to_host(self._steps, clips.source, clips.names, num_small)
        return to_gather(mine, clips.source)

    def _pass_on(self, parts: Sequence[Steps]) -> None:
        """Give the steps of all ranks to the thread; plan the next copy."""
        self._write(join(parts))
        # The same on all ranks, which have the same parts.
        seconds = [row["step_seconds"] for row in parts[0].rows]
        if seconds:
            num = _COPY_SECONDS / max(sorted(seconds)[len(seconds) // 2], 1e-9)
            self._num_between = max(1, int(min(num, self._num_steps)))
        self._steps = []
        self._glance.forget()

    def _write(self, steps: Steps, *, is_part: bool = False) -> None:
        if self._writer is None or not steps.rows:
            return
        factors = self._clips.factors()
        add_numbers(steps, factors, is_part)
        self._worst.add(steps.rows)
        self._writer.put(steps, is_ours=factors is None)

    def _warn_if_blind(self, num_steps: int) -> None:
        """Warn once if no step of the optimizer was seen in a whole ring."""
        if self._has_seen or num_steps < self._num_between:
            return
        self._has_seen = True
        warn_of_blindness(self.directory, type(self._stepping))

    @property
    def alarms(self) -> list[Any]:
        """All events so far; on rank 0 alone."""
        return [*self._writer.events] if self._writer is not None else []

    def worst(self) -> dict[str, Any]:
        """Return the worst of the steps copied since the last call.

        On rank 0: ``alarms``, the number of events that were found; and as far
        as they are known ``h_min_worst``, ``shadow_h_min_worst`` and
        ``global_grad_norm_max``, each with its step (``h_min_worst_step``).
        """
        return self._try(self._take_worst) or {}

    def _take_worst(self) -> dict[str, Any]:
        return self._worst.take(len(self.alarms))

    def latest(self) -> dict[str, Any]:
        """Return the numbers of the last step copied; on rank 0."""
        return self._worst.latest

    # ---- errors -------------------------------------------------------------

    def _try(
        self,
        function: Callable[..., Any],
        *args: Any,
        failed: Any = None,
        raises: tuple[type[Exception], ...] = (),
    ) -> Any:
        """Call what observes; an error ends the record, not the training.

        Returns:
            What ``function`` does; ``failed`` if this record has failed.
        """
        if self.error is not None or self._is_over or self._pid != os.getpid():
            return failed
        try:
            return function(*args)
        except raises:
            raise
        except Exception as error:
            self._end(error)
            return failed

    def _ask(
        self, exchange: Callable[[Any], Any], mine: Any, failed: Any = None
    ) -> Any:
        """Take part in an exchange of all ranks, also if this one has failed.

        It then gives ``failed``; without it the others would wait for ever.
        """
        for _ in range(2):
            try:
                return exchange(mine if self.error is None else failed)
            except Exception as error:
                self._end(error, "rank" if dist.get_world_size() > 1 else "")
        return failed

    def _end(self, error: Exception, kind: str = "") -> None:
        """End the record, and say once why."""
        if self.error is not None:
            return
        self.error, self._steps = error, []
        is_disk = isinstance(error, (OSError, sqlite3.Error))
        kind, text = kind or ("disk" if is_disk else "unknown"), _cause(error)
        if self._writer is not None:
            with contextlib.suppress(Exception):
                how = self._how or (kind, text)
                self._writer.close(self._ending(*how), 0)
        warn(
            f"the record {self.directory} ends after step {self._last_step}: "
            f"{text}"
        )

    # ---- the optimizer and its clip -----------------------------------------

    def switch(self) -> ClipGradByAdaGC:
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
        clip = self._clips.switch()
        self._begin_anew()
        return clip

    def switch_back(self, clip: ClipGradBase | None) -> None:
        """Let another clip act; the one that acts now follows as a shadow.

        Args:
            clip: Clip for the optimizer; None: no clip.

        Raises:
            RuntimeError: The clip that acts is none of this package.
        """
        if not self._clips.is_ours:
            raise RuntimeError(
                f"{self._clips.acting!r} acts, which cannot follow as a shadow"
            )
        self.flush()
        self._clips.switch_back(clip)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.forget_updates()
        self._try(self._begin_session)

    def _begin_session(self) -> None:
        if self._skipper is not None:
            self._skipper.source = self._clips.source
        if self._writer is not None:
            self._writer.begin(self._last_step + 1, self._facts())

    def _see(self, pairs: Any, begins: bool) -> bool:
        """See an update's gradients; return whether it is to be made.

        ``begins``: they are those of the optimizer's first group.
        """
        if self._pid != os.getpid():
            return True
        try:
            if makes_states_only():
                return True
        except Exception as error:
            self._end(error)
        if begins and self._was_called:  # nobody has finished the last one
            self._finish()
        if begins and self._num_pending >= self._num_between:
            self.flush()
        self._was_called = self._has_seen = True
        self._try(self._take_losses)
        if self._skipper is not None and begins:
            self._skipped = self._judge(self._skipper, pairs)
        if self._skipped is None and self.shadow is not None:
            self._follow(pairs)
        return self._skipped is None

    def _take_losses(self) -> None:
        if self._sees_losses:
            self._losses += take_losses(self._optimizer, self)
            self._last_loss = (self._losses or [self._last_loss])[-1]
        if self._rate is None:  # a scheduler may go on before step()
            self._rate = self._optimizer.get_lr()

    def _judge(self, skipper: Skipper, pairs: Any) -> LastStep | None:
        """Return the numbers of a step to leave out; None: it is made."""
        nothing = 0.0, None, None
        norm, snapshot, loss = self._try(
            skipper.measured, pairs, self._losses, failed=nothing
        )
        loss = self._ask(mean_loss, loss)
        flag = self._try(skipper.flag, norm, loss, failed=skipper.FAILED)
        flag = self._ask(largest, flag, skipper.FAILED)
        if flag == skipper.FAILED:
            self._skipper = None
        if flag != 1 or snapshot is None:
            skipper.num_in_a_row = 0
            return None
        skipper.num_in_a_row += 1
        skipper.num_skipped += 1
        return snapshot

    def _follow(self, pairs: Any) -> None:
        """Show the shadow an update's gradients; its errors end it alone."""
        assert self.shadow is not None
        try:
            pairs = pairs["params"] if isinstance(pairs, dict) else pairs
            self.shadow(whole(pairs))
        except Exception as error:
            clip, self._clips.shadow = self.shadow, None
            self._try(agree, clip)
            if self._skipper is not None:
                self._end(error)
            else:
                warn(f"the record goes on without the tensors: {_cause(error)}")
            for step in self._steps:
                step.snapshot = step.acting = None
            self.forget_updates()
            self._was_called = True

    # ---- the end ------------------------------------------------------------

    def close(self) -> None:
        """Write what is left, and stop recording; every rank calls it."""
        if self._pid != os.getpid():
            return
        if self._sees_losses:
            self._finish()
        self.flush()
        self._stop("finished", "", _CLOSE_SECONDS)

    def leave(self, error: BaseException | None = None) -> None:
        """Write this rank's steps, and stop recording.

        It does not ask the other ranks, who may be gone.

        Args:
            error: The exception that ends the run.
        """
        kind = "unknown" if error is None else "exception"
        text = "the record was left" if error is None else described(error)
        self._leave_at_exit(kind, text)

    def _leave_at_exit(self, kind: str, text: str) -> None:
        if self._pid != os.getpid():
            return
        self._finish()
        self._try(self._write_mine)
        self._stop(kind, text, _EXIT_SECONDS)

    def _write_mine(self) -> None:
        steps, self._steps = self._steps, []
        if steps:
            clips = self._clips
            mine = to_host(steps, clips.source, clips.names)
            is_part = bool(mine.keys) and is_split(clips.source)
            self._write(mine, is_part=is_part)

    def __del__(self) -> None:
        """Write what is left of a record that nobody closed."""
        if vars(self).get("_at_exit") is not None and self._at_exit.is_active:
            with contextlib.suppress(Exception):
                self.leave()

    def _ending(self, kind: str, text: str) -> dict[str, Any]:
        has_steps = self._last_step > self.start
        return {
            "kind": kind,
            "text": text,
            "time": time.time(),
            "step": self._last_step if has_steps else None,
            "last_loss": self._try(self._newest_loss),
        }

    def _newest_loss(self) -> float | None:
        """Return the last loss, whether or not a step followed."""
        loss = newest_loss(self._optimizer) if self._sees_losses else None
        loss = self._last_loss if loss is None else loss
        return None if loss is None else float(loss)

    def _stop(self, kind: str, text: str, seconds: float) -> None:
        self._how = kind, text
        for end in (
            self._end_observing,
            self._at_exit.end,
            lambda: self._close_writer(kind, text, seconds),
        ):
            try:
                end()
            except Exception as error:
                self._end(error)
        if self._sees_losses:
            self._sees_losses = False
            RECORDS.remove(self)
        self._is_over = True

    def _close_writer(self, kind: str, text: str, seconds: float) -> None:
        if self._writer is None or self._is_over:
            return
        left, ending = 0, self._ending(kind, text)
        if self.error is None:
            left = self._writer.close(ending, seconds)
        if self._writer.error is not None:
            raise self._writer.error
        if left or self._writer.dropped:
            warn(
                f"the record {self.directory} lacks "
                f"{left + self._writer.dropped} steps: the disk refused them"
            )


def _cause(error: Exception | None) -> str:
    return str(error) or repr(error)


def record_of(optimizer: Any) -> Record | None:
    """Return the record that an optimizer's steps go to, if there is one."""
    observed = vars(stepping(optimizer)).get("_apply_optimize")
    return getattr(observed, "record", None)
