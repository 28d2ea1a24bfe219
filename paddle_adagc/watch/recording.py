# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The steps of a record: seen, copied, given to the thread that writes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import paddle.distributed as dist

from paddle_adagc.clips.last_step import LastStep
from paddle_adagc.paddle_internals import makes_states_only
from paddle_adagc.parallel.agreement import of_all_ranks
from paddle_adagc.watch.alarms import OnAlarm, warn
from paddle_adagc.watch.clips import Clips, whole
from paddle_adagc.watch.folder import open_folder
from paddle_adagc.watch.guard import Guarded, cause
from paddle_adagc.watch.losses import RECORDS, newest_loss, take_losses
from paddle_adagc.watch.measure import Steps, add_numbers
from paddle_adagc.watch.observe import gradients_of, warn_of_blindness
from paddle_adagc.watch.ring import (
    Ring,
    Step,
    is_split,
    join,
    own_part,
    to_host,
)
from paddle_adagc.watch.skip import Skipper, history, largest, mean_loss
from paddle_adagc.watch.writer import Writer

CLOSE_SECONDS, EXIT_SECONDS = 60.0, 10.0
"""How long the disk may take at an end."""


@dataclasses.dataclass
class _Update:
    """What is known of the step that is being made."""

    num_before: int
    """Updates that the recorded clip had made."""

    losses: list[Any] = dataclasses.field(default_factory=list)
    rate: float | None = None
    was_called: bool = False
    """The optimizer has shown its gradients."""

    left_out: LastStep | None = None
    """The numbers of a step that is not made."""


class Recording(Guarded):
    """Steps on their way to the disk; the inside of :class:`.Record`.

    ``stops``: a loss that is not finite ends the training.
    """

    should_stop: str
    """Why training should end, with ``stop_on``; empty: it should not. It is
    the same on all ranks, as of the last copy of the steps."""

    def __init__(
        self,
        clips: Clips,
        ring: Ring,
        skipper: Skipper | None,
        stops: bool,
    ) -> None:
        super().__init__()
        self._clips, self._ring = clips, ring
        self._skipper, self._stops = skipper, stops
        self.should_stop = ""
        self._writer: Writer | None = None  # of rank 0
        self._directory = Path()
        self._how: tuple[str, str] | None = None  # the run ends
        self._ends = contextlib.ExitStack()  # ends observing

    def _open(
        self,
        directory: Path,
        start: int | None,
        max_bytes: int,
        on_alarm: OnAlarm,
    ) -> None:
        """Choose the folder on rank 0, which alone writes."""
        answer: Any = None
        if dist.get_rank() == 0:
            try:
                folder, past = open_folder(directory, start)
                first, facts = self._ring.start + 1, self._clips.facts()
                self._writer = Writer(
                    folder, first, facts, max_bytes, on_alarm, past
                )
                answer = folder, history(past, start or 0)
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
        self._directory, rows = answer
        if self._skipper is not None:
            for row in rows:
                self._skipper.rule.add(row)

    @property
    def directory(self) -> Path:
        """Folder of the record; on rank 0 where it is written."""
        return self._writer.directory if self._writer else self._directory

    # ---- an update of the optimizer -----------------------------------------

    def _see(self, pairs: Any, begins: bool) -> bool:
        """See an update's gradients; return whether it is to be made.

        ``begins``: they are those of the optimizer's first group.
        """
        if self._is_idle or self._try(makes_states_only):
            return True
        if begins and self._update.was_called:  # nobody finished the last one
            self._finish()
        if begins and self._is_due():
            self.flush()
        self._update.was_called = True
        self._try(self._take_losses)
        if self._skipper is not None and begins:
            self._update.left_out = self._judge(self._skipper, pairs)
        if self._update.left_out is None:
            self._follow(pairs)
        return self._update.left_out is None

    def _take_losses(self) -> None:
        optimizer, update = self._clips.optimizer, self._update
        if self in RECORDS:
            update.losses += take_losses(optimizer, self)
        if update.losses:
            self._ring.last_loss = update.losses[-1]
        if update.rate is None:  # a scheduler may go on before step()
            update.rate = optimizer.get_lr()

    def _judge(self, skipper: Skipper, pairs: Any) -> LastStep | None:
        """Return the numbers of a step to leave out; None: it is made."""
        pairs = self._gradients(pairs, of_all_groups=True)
        found = self._try(skipper.measured, pairs, self._update.losses)
        if found is None:
            with contextlib.suppress(Exception):
                skipper.take_part()
        norm, snapshot, loss = found or (0.0, None, None)
        loss = self._ask(mean_loss, loss)
        flag = self._try(skipper.flag, norm, loss, failed=skipper.FAILED)
        flag = self._ask(largest, flag, skipper.FAILED)
        if flag == skipper.FAILED:
            self._skipper = None
        left_out = snapshot if flag == 1 else None
        self._try(skipper.count, left_out is not None)
        return left_out

    def _gradients(self, pairs: Any, of_all_groups: bool = False) -> list[Any]:
        """Return pairs with whole gradients, for which a mesh's ranks meet."""
        try:
            if isinstance(pairs, dict) and of_all_groups:
                pairs = gradients_of(self._clips.optimizer)
            elif isinstance(pairs, dict):
                pairs = pairs["params"]
            return whole(pairs)
        except Exception as error:
            self._end(error)
            return []

    def _follow(self, pairs: Any) -> None:
        """Show the shadow an update's gradients.

        After an error it sees none, and still takes part in sums of all ranks.
        """
        shadow = self._clips.shadow
        if shadow is None:
            return
        self._try(shadow, self._gradients(pairs))
        if self.error is not None:
            with contextlib.suppress(Exception):
                shadow([])

    def _has_update(self) -> bool:
        """Whether the optimizer has made a step since the last one ended."""
        if self._clips.source is None or self._update.left_out is not None:
            return self._update.was_called
        return self._clips.num_updates != self._update.num_before

    def _has_overflowed(self) -> bool:
        """Whether a ``GradScaler`` has left out the update of this step."""
        flag = self._clips.optimizer._get_auxiliary_var("found_inf")
        return self._update.was_called and bool(flag)

    def forget_updates(self) -> None:
        """Take the state of the recorded clip for that of now."""
        self._update = _Update(self._clips.num_updates)

    # ---- the end of a step --------------------------------------------------

    def _finish(self) -> None:
        """Finish a step, maybe within the next one's backward pass.

        Nothing is gathered there: a pipeline's stages wait for each other.
        """
        if self._try(self._has_stepped, failed=self._update.was_called):
            self._end_step({})

    def _has_stepped(self) -> bool:
        return self._has_update() or self._has_overflowed()

    def _end_step(self, numbers: Mapping[str, Any]) -> None:
        """Count a step; also one of a rank whose record has failed.

        So it takes part in the next copy.
        """
        self._try(self._add_step, numbers)
        self._ring.num_pending += 1
        self._update.was_called, self._update.left_out = False, None

    def _add_step(self, numbers: Mapping[str, Any]) -> None:
        clips, update = self._clips, self._update
        rate = clips.optimizer.get_lr() if update.rate is None else update.rate
        row: dict[str, Any] = {"learning_rate": float(rate)}
        step = Step(row, update.losses)
        if update.left_out is not None and self._skipper is not None:
            step.snapshot = update.left_out
            row |= {"skipped": True, "reason": self._skipper.reason}
        elif self._has_update() and clips.source is not None:
            step.snapshot = clips.source.snapshot()
        elif self._has_overflowed():
            row["overflow"] = True
        self._ring.has_seen |= update.was_called or step.snapshot is not None
        row |= numbers
        self.forget_updates()
        found = self._ring.add(step)
        if self._writer is not None:
            self._writer.start()
        if found and self._writer is not None:
            self._writer.alarm_nonfinite(*found[0])
        if dist.get_world_size() == 1:
            self._stop_at(found)

    def _is_due(self) -> bool:
        return self._ring.num_pending >= self._ring.num_between

    def flush(self) -> None:
        """Copy the steps from the device; every rank calls it.

        A thread of rank 0 writes them.
        """
        if not self._ring.num_pending or self._is_idle:
            return
        mine = self._try(self._copy)
        parts = self._ask(self._gather, mine) or []
        said = ((i, x) for i, x in enumerate(parts) if isinstance(x, str))
        failed = [f"rank {i}: {text}" for i, text in said]
        if failed or not parts:
            self._is_over = True
            self._end(RuntimeError("".join(failed[:1])), "rank")
            return
        self._try(self._pass_on, parts)
        self._ring.num_pending = 0

    def _gather(self, mine: Steps | None) -> list[Steps | str]:
        """Return the steps of all ranks, or why a rank's record ends."""
        if mine is None:
            return of_all_ranks(cause(self.error))
        return self._ring.gather(mine, is_split(self._clips.source))

    def _copy(self) -> Steps:
        """Copy this rank's steps from the device."""
        if self._writer is not None and self._writer.error is not None:
            raise self._writer.error
        if not self._ring.has_seen and self._is_due():
            self._ring.has_seen = True
            warn_of_blindness(self.directory, type(self._clips.optimizer))
        mine = to_host(self._ring.steps, self._clips.names)
        return own_part(mine, self._clips.source)

    def _pass_on(self, parts: Sequence[Steps]) -> None:
        """Give the steps of all ranks to the thread; plan the next copy."""
        self._ring.plan(parts[0].rows)  # first: all ranks plan alike
        self._stop_at([loss for part in parts for loss in part.nonfinite])
        self._write(join(parts))
        self._ring.steps = []  # last: SIGTERM before it writes them again

    def _stop_at(self, found: Sequence[tuple[int, float]]) -> None:
        if self._stops and found and not self.should_stop:
            step, loss = min(found)
            self.should_stop = f"the loss of step {step} is {loss}"

    def _write(self, steps: Steps, *, is_part: bool = False) -> None:
        if self._writer is None or not steps.rows:
            return
        add_numbers(steps, self._clips.factors(), is_part)
        self._ring.unlogged.add(steps.rows)
        self._writer.put(steps)

    def _begin_session(self) -> None:
        self.forget_updates()
        first, facts = self._ring.last_step + 1, self._clips.facts()
        if self._writer is not None:
            self._writer.write(lambda store: store.begin(first, facts))

    def _tell(self) -> None:
        facts = self._clips.facts()
        if self._writer is not None:
            self._writer.write(lambda store: store.tell(facts))

    def _on_error(self, error: Exception, kind: str) -> None:
        self._ring.drop()
        # The thread handles errors of files. An OSError here is one of CUDA.
        is_disk = isinstance(error, sqlite3.Error)
        kind, text = kind or ("disk" if is_disk else "unknown"), cause(error)
        if self._writer is not None:
            with contextlib.suppress(Exception):
                how = self._how or (kind, text)
                self._writer.close(self._ending(*how), 0)
        warn(
            f"the record {self.directory} ends after step "
            f"{self._ring.last_step}: {text}"
        )

    def _leave(self, kind: str, text: str) -> None:
        """Write this rank's steps at the end of the process."""
        if self._pid != os.getpid():
            return
        self._how = kind, text
        self._finish()
        self._try(self._write_mine)
        self._stop(kind, text, EXIT_SECONDS)

    def _write_mine(self) -> None:
        if steps := self._ring.steps:
            source = self._clips.source
            mine = own_part(to_host(steps, self._clips.names), source)
            self._write(mine, is_part=bool(mine.keys) and is_split(source))

    def __del__(self) -> None:
        """Write what is left: with the optimizer its record goes, too."""
        if "_update" in vars(self) and not self._is_idle:
            with contextlib.suppress(Exception):
                self._leave("finished", "the optimizer was deleted")

    def _ending(self, kind: str, text: str) -> dict[str, Any]:
        has_steps = self._ring.last_step > self._ring.start
        return {
            "kind": kind,
            "text": text,
            "time": time.time(),
            "step": self._ring.last_step if has_steps else None,
            "last_loss": self._try(self._newest_loss),
        }

    def _newest_loss(self) -> float | None:
        """Return the last loss, whether or not a step followed."""
        loss = newest_loss(self._clips.optimizer) if self in RECORDS else None
        loss = self._ring.last_loss if loss is None else loss
        return None if loss is None else float(loss)

    def _stop(self, kind: str, text: str, seconds: float) -> None:
        self._how = kind, text
        for end in (
            self._ends.close,
            lambda: self._close_writer(kind, text, seconds),
        ):
            try:
                end()
            except Exception as error:
                self._end(error)
        RECORDS.discard(self)
        self._is_over = True

    def _close_writer(self, kind: str, text: str, seconds: float) -> None:
        if self._writer is None:
            return
        left = 0
        if self.error is None and not self._is_over:
            left = self._writer.close(self._ending(kind, text), seconds)
        self._writer.wait(seconds)  # an earlier end may be on its way
        if self._is_over:
            return
        if self._writer.error is not None:
            raise self._writer.error
        if left or self._writer.dropped:
            warn(
                f"the record {self.directory} lacks "
                f"{left + self._writer.dropped} steps: the disk refused them"
            )
