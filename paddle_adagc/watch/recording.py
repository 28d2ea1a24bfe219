# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The steps of a record: seen, copied, given to the thread that writes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import paddle.distributed as dist

from paddle_adagc.clips.last_step import LastStep
from paddle_adagc.paddle_internals import makes_states_only
from paddle_adagc.parallel.agreement import of_all_ranks
from paddle_adagc.watch.clips import Clips
from paddle_adagc.watch.folder import Opened, open_folder
from paddle_adagc.watch.guarded import Guarded, cause
from paddle_adagc.watch.losses import (
    take_losses,
)
from paddle_adagc.watch.measure import add_numbers
from paddle_adagc.watch.observe import warn_of_blindness
from paddle_adagc.watch.ring import (
    Glance,
    Step,
    Steps,
    Worst,
    count_small,
    join,
    to_gather,
    to_host,
)
from paddle_adagc.watch.shadow import agree
from paddle_adagc.watch.skip import (
    Skipper,
    largest,
    mean_loss,
    whole,
)
from paddle_adagc.watch.writer import OnAlarm, Writer, warn

FIRST_COPY = 8
"""Steps until the first copy: then it is known how long one takes."""

_COPY_SECONDS = 60.0


class Recording(Guarded):
    """Steps on their way to the disk; a part of :class:`.Record`."""

    should_stop: str

    def __init__(
        self, clips: Clips, stepping: Any, stop_on: str | None
    ) -> None:
        super().__init__(clips.optimizer)
        self._clips, self._stepping, self._stop_on = clips, stepping, stop_on
        self.should_stop = ""
        """With ``stop_on``: why training should end; the same on all ranks, as
        of the last copy of the steps. Empty: it should not."""
        self._shared: set[str] = set()  # names of others with the same loss
        self._skipper: Skipper | None = None
        self._losses: list[Any] = []
        self._rate: float | None = None  # of the update
        self._skipped: LastStep | None = None  # of a step that is left out
        self._has_seen = False
        self._counter: Callable[[], int] | None = None
        self._glance, self._worst = Glance(), Worst()
        self._num_pending, self._num_steps = 0, FIRST_COPY
        self._num_between = FIRST_COPY
        self._last_time = time.perf_counter()

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

    def _finish(self) -> None:
        """Finish a step, maybe within the next one's backward pass.

        Nothing is gathered there: a pipeline's stages wait for each other.
        """
        if self._try(self._has_stepped, failed=self._was_called):
            self._end_step({})

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
        return of_all_ranks(cause(self.error) if mine is None else mine)

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

    def _begin_anew(self) -> None:
        self.forget_updates()
        self._try(self._begin_session)

    def _begin_session(self) -> None:
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
        if self._skipped is None and self._clips.shadow is not None:
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
        assert self._clips.shadow is not None
        try:
            pairs = pairs["params"] if isinstance(pairs, dict) else pairs
            self._clips.shadow(whole(pairs))
        except Exception as error:
            clip, self._clips.shadow = self._clips.shadow, None
            self._try(agree, clip)
            if self._skipper is not None:
                self._end(error)
            else:
                warn(f"the record goes on without the tensors: {cause(error)}")
            for step in self._steps:
                step.snapshot = step.acting = None
            self.forget_updates()
            self._was_called = True
