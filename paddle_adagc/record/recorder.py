# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``Record``: every step of a training, for any loop and any clip."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import KnownAttributes, check_choice, check_integer
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.last_step import LastStep
from paddle_adagc.guards import makes_states_only
from paddle_adagc.integrations.optimizer import innermost, put_into_optimizer
from paddle_adagc.parallel.agreement import of_all_ranks
from paddle_adagc.record.facts import (
    acting_clip,
    clips_of,
    facts_of,
    groups_of,
    is_warming_up,
)
from paddle_adagc.record.files import OWN_FIELDS, write_part
from paddle_adagc.record.hooks import (
    AtExit,
    model_parameters_of,
    observe,
    stepping,
)
from paddle_adagc.record.losses import (
    RECORDS,
    scalar,
    see_losses,
    take_losses,
)
from paddle_adagc.record.ring import (
    Step,
    Steps,
    count_small,
    is_split,
    join,
    to_gather,
    to_host,
)
from paddle_adagc.record.session import Session
from paddle_adagc.record.shadow import (
    agree,
    bind,
    check_shadow,
    default_shadow,
    factors_of,
    make_shadow,
    names_of,
    unwrapped,
)
from paddle_adagc.record.skip import (
    SkipRule,
    check_skipping,
    check_stepping,
    largest,
    mean_loss,
    measured,
    whole,
)
from paddle_adagc.record.writer import MAX_BYTES
from paddle_adagc.stability.alarms import Alarm

logger = logging.getLogger(__name__)

NUM_STEPS = 64
"""Steps that stay on the device before they are copied."""

_FAILED = 2  # instead of whether a step is to be skipped


class Record(KnownAttributes):
    """Record every step of a training in a folder, for ``adagc-report``.

    The optimizer's clip goes on as before, whatever it is. Under a clip of
    Paddle, fleet, or none the norms are measured in one pass over the
    gradients, and a shadow, AdaGC, follows them without changing any.

    The last steps stay on the device and are copied together: no step waits.
    A killed process loses at most its last ``num_steps`` steps. An exception,
    the interpreter's exit and SIGTERM copy them; call :meth:`flush` before a
    checkpoint. In a distributed run every rank makes a record and calls its
    methods; one gather per copy, rank 0 writes.

    An error of recording ends the record, with a warning that names its cause,
    and never the training: a rank whose record has failed tells the others at
    the next copy, and all end theirs.

    Args:
        directory: Folder of the record. A run that is resumed goes on in it.
        optimizer: Any optimizer of Paddle; fleet's wrappers are looked into.
        model: Names the tensors; default: the layer of this process that
            holds the optimizer's parameters.
        shadow: Clip of this package that follows the norms. Default: AdaGC, if
            the optimizer's clip is none of this package, or its parameter
            groups have several. False: none, so that nothing is known of
            tensors under another clip.
        start: Index of the next step. Default: after the record's last one.
        num_steps: Steps between two copies.
        max_bytes: Bound of the per-tensor numbers on the disk, at least 1e6;
            the steps' own numbers take up to 400 bytes a step. See
            :class:`~paddle_adagc.record.writer.RecordWriter`.
        on_alarm: Called on rank 0 with a line for each event, when the steps
            are copied. Default: a warning in the log.
        skip_above: Leave a step out whose global norm, or whose loss, is more
            than so many deviations above the median of the last 128 (see
            :class:`.Watch`), or holds Inf or NaN: weights, moments and the
            clip's state stay as they are, on all ranks. The first 64 steps are
            not judged. The loss takes part if :meth:`add_loss` gets it before
            the optimizer's step. It works with every clip, and costs one more
            pass over the gradients and one wait for the device in each step:
            the decision is made on the host. The idea is that of OLMo-core's
            ``SkipStepOptimizer``. None: every step is made.
        stop_on: ``"nan"``: set :attr:`should_stop` once a loss is not finite.

    Raises:
        FileExistsError: Another process is writing to the record.
        TypeError, ValueError: A wrong argument; with ``skip_above`` also an
            optimizer that cannot be stopped (LBFGS, whose step has several
            updates), or no norms (``shadow=False`` beside another clip). With
            ``skip_above`` or a shadow: auto-parallel's tensor fusion, or the
            optimizer within ``shard_optimizer``'s.

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

    directory: Path
    shadow: ClipGradByAdaGC | None
    should_stop: str
    num_skipped: int
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
        on_alarm: Callable[[str], None] | None = None,
        skip_above: float | None = None,
        stop_on: Literal["nan"] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._num_steps = check_integer("num_steps", num_steps, 1)
        check_integer("max_bytes", max_bytes, 10**6)
        if start is not None:
            check_integer("start", start, 0)
        if isinstance(optimizer, paddle.nn.Layer):
            raise TypeError(
                f"the optimizer is a {type(optimizer).__name__}: write "
                "Record(directory, optimizer, model)"
            )
        self._optimizer = innermost(optimizer)
        self._stepping: Any = stepping(optimizer)
        self._clips = clips_of(self._optimizer)
        self._acting: Any = acting_clip(self._clips)
        self.shadow = None
        """The clip that follows; None if the optimizer's own is recorded."""
        if isinstance(shadow, ClipGradBase):
            self.shadow = check_shadow(shadow)
            if any(unwrapped(clip) is shadow for clip in self._clips):
                raise ValueError(
                    f"shadow={shadow!r} is the optimizer's own clip: give "
                    "another one, or leave shadow out"
                )
        elif shadow is not False and not self._is_ours:
            self.shadow = default_shadow(self._acting)
        parameters = model_parameters_of(optimizer)
        if self.shadow is not None:
            bind(self.shadow, model, parameters)
        self._names: dict[str, str] = {}
        """The record's names of tensors that a clip has under Paddle's."""
        if not all(clip._progress.tensors.is_bound for clip in self._our_clips):
            self._names = names_of(model, parameters)
        if skip_above is not None:
            check_skipping(
                skip_above, self._stepping, self._source, self._acting
            )
        if skip_above is not None or self.shadow is not None:
            check_stepping(self._stepping)
        if stop_on is not None:
            check_choice("stop_on", stop_on, ("nan",))
        self._stop_on, self._on_alarm = stop_on, on_alarm or _log_alarm
        self.should_stop = ""
        """With ``stop_on``: why training should be saved and ended; the same on
        all ranks, as of the last copy of the steps. Empty: it should not."""
        self.num_skipped = 0
        """Steps that this process has left out."""
        self.error = None
        """Why the record ended early: a full disk, say."""
        self._is_over = False  # on all ranks, or closed
        self._steps: list[Step] = []
        self._losses: list[Any] = []
        self._rate: float | None = None  # of the update
        self._skipped: LastStep | None = None  # of a step that is left out
        self._sees_losses = self._has_seen = False
        self._session: Session | None = None  # of rank 0
        answer = self._open(start, max_bytes)
        self.start, self._number, history = answer
        """The first step of this process."""
        self._next_step = self.start
        self._first_pending = self._first_unwritten = self.start
        self._skip_rule: SkipRule | None = None
        if skip_above is not None:
            self._skip_rule = SkipRule(skip_above, history)
        if self.shadow is not None:
            make_shadow(self.shadow)
        self.forget_updates()
        self._last_time = time.perf_counter()
        self._end_observing = observe(self._stepping, self)
        self._at_exit = AtExit(self.leave)

    def _open(
        self, start: int | None, max_bytes: int
    ) -> tuple[int, int, list[tuple[int, dict[str, float]]]]:
        """Open the files on rank 0.

        Returns:
            The next step, the session, and what earlier sessions have recorded.
        """
        answer: Any = None
        if dist.get_rank() == 0:
            facts = facts_of(self._optimizer, self._acting, self.shadow)
            try:
                self._session = Session(self.directory, start, facts, max_bytes)
                session = self._session
                answer = session.start, session.number, session.history
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
        return answer

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

    def see_losses(self) -> None:
        """Take the loss from the scalars whose ``backward()`` is called.

        Those before each of the optimizer's steps add up. A step that
        :meth:`step` did not finish ends with the next ``backward()``. Records
        of several optimizers share the scalars: each ``backward()`` has to come
        just before the step of its optimizer, as in the loop of a GAN.
        """
        see_losses()
        self._sees_losses = True
        RECORDS.append(self)

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
        self._try(_check_numbers, numbers, raises=(TypeError, ValueError))
        if loss is not None:
            self.add_loss(loss)
        self._end_step(numbers)
        if self._num_pending >= self._num_steps:
            self.flush()

    def _end_step(self, numbers: Mapping[str, Any]) -> None:
        """Count a step; also one of a rank whose record has failed.

        So it takes part in the next copy.
        """
        self._try(self._add_step, numbers)
        self._next_step += 1
        self._losses, self._rate = [], None
        self._was_called, self._skipped = False, None

    def _add_step(self, numbers: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        rate = self._optimizer.get_lr() if self._rate is None else self._rate
        row: dict[str, Any] = {"learning_rate": float(rate)}
        row["step_seconds"] = now - self._last_time
        snapshot = acting = None
        if self._skipped is not None:
            snapshot, row["skipped"] = self._skipped, True
        elif self.has_update and self._source is not None:
            if self.shadow is None and is_warming_up(self._source):
                row["warm_up"] = True
            snapshot, self._has_seen = self._source.snapshot(), True
            if self.shadow is not None and self._is_ours:
                acting = self._acting.snapshot()
        elif self._overflowed:
            row["overflow"] = True
        self.forget_updates()
        step = Step(self._next_step, {**row, **numbers}, self._losses)
        step.snapshot, step.acting = snapshot, acting
        self._steps.append(step)
        self._last_time = now

    @property
    def _num_pending(self) -> int:
        """Steps since the last copy."""
        return self._next_step - self._first_pending

    def _has_stepped(self) -> bool:
        return self.has_update or self._overflowed

    @property
    def has_update(self) -> bool:
        """Whether the optimizer has made a step since the last :meth:`step`."""
        if self._source is None or self._skipped is not None:
            return self._was_called
        return self._num_updates() != self._seen

    @property
    def _overflowed(self) -> bool:
        """Whether a ``GradScaler`` has left out the update of this step."""
        overflow = self._optimizer._get_auxiliary_var("found_inf") is True
        return self._was_called and overflow

    def forget_updates(self) -> None:
        """Take the state of the recorded clip for that of now."""
        self._seen, self._was_called = self._num_updates(), False
        self._skipped = None

    def flush(self) -> list[str]:
        """Copy the steps from the device and write them; every rank calls it.

        Returns:
            A line for each event that began in these steps; on rank 0 alone.
        """
        if not self._num_pending or self._is_over:
            return []
        mine = self._try(self._copy)
        self._first_pending = self._next_step
        parts = self._ask(self._gather, mine) or []
        failed = [
            f"rank {i}: {x}" for i, x in enumerate(parts) if isinstance(x, str)
        ]
        if failed or not parts:
            self._is_over = True
            self._end(RuntimeError("".join(failed[:1])))
            return []
        found = [part.nonfinite for part in parts if part.nonfinite]
        if self._stop_on and found and not self.should_stop:
            step, loss = min(found)
            self.should_stop = f"the loss of step {step} is {loss}"
        lines = self._try(self._write_joined, parts, failed=[])
        self._first_unwritten = self._next_step
        return lines

    def _gather(self, mine: Steps | None) -> list[Steps | str]:
        """Return the steps of all ranks, or why a rank's record ends."""
        return of_all_ranks(_cause(self.error) if mine is None else mine)

    def _write_joined(self, parts: Sequence[Steps]) -> list[str]:
        return self._write(join(parts))

    def _copy(self) -> Steps:
        """Copy this rank's steps from the device."""
        steps, self._steps = self._steps, []
        self._warn_if_blind(len(steps))
        num_small = count_small(self._optimizer)
        mine = to_host(steps, self._source, self._names, num_small)
        return to_gather(mine, self._source)

    def _warn_if_blind(self, num_steps: int) -> None:
        """Warn once if no step of the optimizer was seen in a whole ring."""
        if self._has_seen or num_steps < self._num_steps:
            return
        self._has_seen = True
        kind = type(self._stepping)
        what_to_do = (
            "give Record the optimizer whose step() is called, after it is "
            "wrapped"
        )
        if issubclass(kind, paddle.optimizer.LBFGS):
            what_to_do = "its updates cannot be seen"
        warnings.warn(
            f"the record {self.directory} has seen no step of {kind.__name__}, "
            "so that nothing but the loss is recorded and no step is left out: "
            f"{what_to_do}",
            stacklevel=3,
        )

    @property
    def alarms(self) -> list[Alarm]:
        """All events so far, of earlier processes too; on rank 0 alone."""
        return self._try(lambda: self._session and self._session.alarms) or []

    def _write(self, steps: Steps, *, is_part: bool = False) -> list[str]:
        if self._session is None:
            return []
        factors = None
        if self.shadow is not None or not self._is_ours:
            tensors = self._source and self._source._progress.tensors
            groups = groups_of(self._optimizer, tensors, self._names)
            factors = factors_of(self._clips, groups)
        lines = self._session.write(steps, factors, is_part=is_part)
        for line in lines:
            self._on_alarm(line)
        return lines

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
        if self.error is not None or self._is_over:
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
                self._end(error)
        return failed

    def _end(self, error: Exception) -> None:
        """End the record, and say once why."""
        if self.error is not None:
            return
        self.error, self._steps = error, []
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):
                session.close()
        text = (
            f"the record {self.directory} ends before step "
            f"{self._first_unwritten}: {_cause(error)}"
        )
        try:
            warnings.warn(text, stacklevel=4)
        except UserWarning:  # python -W error
            logger.warning(text)

    def worst(self) -> dict[str, Any]:
        """Return the worst of the steps written since the last call.

        On rank 0: ``alarms``, the number of events that began in them; and as
        far as they are known ``h_min_worst``, ``shadow_h_min_worst`` and
        ``global_grad_norm_max``, each with its step (``h_min_worst_step``).
        """
        return self._try(lambda: self._session and self._session.worst()) or {}

    def latest(self) -> dict[str, Any]:
        """Return the numbers of the last step written; on rank 0."""
        return self._try(lambda: self._session and self._session.latest()) or {}

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
        clip, self.shadow = self.shadow, None
        clip._follows = False
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
        return isinstance(self._acting, ClipGradByAdaGC)

    @property
    def _source(self) -> ClipGradByAdaGC | None:
        """The clip whose numbers are recorded."""
        if self.shadow is not None:
            return self.shadow
        return self._acting if self._is_ours else None

    @property
    def _our_clips(self) -> list[ClipGradByAdaGC]:
        """The recorded clip, and the one that acts; those of this package."""
        clips = self.shadow, self._acting
        return [clip for clip in clips if isinstance(clip, ClipGradByAdaGC)]

    def _num_updates(self) -> int:
        return self._source.num_steps if self._source is not None else 0

    def _put(self, clip: ClipGradBase | None) -> None:
        put_into_optimizer(self._optimizer, clip)
        self._clips, self._acting = clips_of(self._optimizer), clip
        self.forget_updates()
        self._number += 1
        self._try(self._begin_session)

    def _begin_session(self) -> None:
        if self._session is not None:
            facts = facts_of(self._optimizer, self._acting, self.shadow)
            self._session.begin(self._next_step, facts)

    def _see(self, pairs: Any, begins: bool) -> bool:
        """See an update's gradients; return whether it is to be made.

        ``begins``: they are those of the optimizer's first group.
        """
        try:
            if makes_states_only():
                return True
        except Exception as error:
            self._end(error)
        if begins and self._num_pending >= self._num_steps:
            self.flush()
        self._was_called = self._has_seen = True
        self._try(self._take_losses)
        if self._skip_rule is not None and begins:
            self._skipped = self._judge(self._skip_rule, pairs)
            self.num_skipped += self._skipped is not None
        if self._skipped is None and self.shadow is not None:
            self._follow(pairs)
        return self._skipped is None

    def _take_losses(self) -> None:
        if self._sees_losses:
            self._losses += take_losses()
        if self._rate is None:  # a scheduler may go on before step()
            self._rate = self._optimizer.get_lr()

    def _judge(self, rule: SkipRule, pairs: Any) -> LastStep | None:
        """Return the numbers of a step to leave out; None: it is made."""
        given = self._source, self._stepping, pairs, self._losses
        nothing = 0.0, None, None
        norm, snapshot, loss = self._try(measured, *given, failed=nothing)
        loss = self._ask(mean_loss, loss)
        step = self._next_step
        flag = self._try(rule.skips, step, norm, loss, failed=_FAILED)
        flag = self._ask(largest, int(flag), _FAILED)
        if flag == _FAILED:
            self._skip_rule = None
        return snapshot if flag == 1 else None

    def _follow(self, pairs: Any) -> None:
        """Show the shadow an update's gradients; its errors end it alone."""
        assert self.shadow is not None
        try:
            pairs = pairs["params"] if isinstance(pairs, dict) else pairs
            self.shadow(whole(pairs))
        except Exception as error:
            clip, self.shadow = self.shadow, None
            self._try(agree, clip)
            if self._skip_rule is not None:
                self._end(error)
            else:
                warnings.warn(
                    f"the record goes on without the tensors: {_cause(error)}",
                    stacklevel=2,
                )
            for step in self._steps:
                step.snapshot = step.acting = None
            self.forget_updates()
            self._was_called = True

    # ---- the end ------------------------------------------------------------

    def leave(self) -> None:
        """Write this rank's steps, and stop recording.

        It does not ask the other ranks, who may be gone: for an exception.
        """
        self._finish()
        self._try(self._leave)
        self._stop()

    def _leave(self) -> None:
        steps, self._steps = self._steps, []
        if not steps:
            return
        mine = to_host(steps, self._source, self._names)
        is_part = bool(mine.keys) and is_split(self._source)
        self._write(mine, is_part=is_part)
        if (rank := dist.get_rank()) and mine.keys:
            numbers = np.array([row["step"] for row in mine.rows])
            named = {"steps": numbers, "keys": np.array(mine.keys, "U")}
            arrays = {**named, **mine.tensors}
            write_part(self.directory, rank, self._number, arrays)

    def __del__(self) -> None:
        """Write what is left of a record that nobody closed."""
        if vars(self).get("_at_exit") is not None and self._at_exit.is_active:
            with contextlib.suppress(Exception):
                self.leave()

    def _stop(self) -> None:
        ends = [self._end_observing, self._at_exit.end]
        if self._session is not None:
            ends.append(self._session.close)
        for end in ends:
            try:
                end()
            except Exception as error:
                self._end(error)
        if self._sees_losses:
            self._sees_losses = False
            RECORDS.remove(self)
        self._session, self._is_over = None, True


def _cause(error: Exception | None) -> str:
    return str(error) or repr(error)


def _check_numbers(numbers: Mapping[str, Any]) -> None:
    """Refuse what the files could not hold, or would take for theirs."""
    for name, value in numbers.items():
        if name in OWN_FIELDS:
            raise ValueError(
                f"record.step({name}={value!r}): {name!r} is the record's own, "
                "which counts and measures itself: give the number another name"
            )
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"record.step({name}=...): {error}; give float(), int(), text "
                "or a list of these"
            ) from error


def _log_alarm(line: str) -> None:
    logger.warning("alarm: %s", line)


def record_of(optimizer: Any) -> Record | None:
    """Return the record that an optimizer's steps go to, if there is one."""
    observed = vars(stepping(optimizer)).get("_apply_optimize")
    return getattr(observed, "record", None)
