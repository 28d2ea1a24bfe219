# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What observes may fail, and a run may end, at any time."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle.distributed as dist

from paddle_adagc.checks import KnownAttributes
from paddle_adagc.watch.clips import Clips
from paddle_adagc.watch.ending import AtExit
from paddle_adagc.watch.losses import (
    RECORDS,
    newest_loss,
)
from paddle_adagc.watch.ring import (
    Step,
    is_split,
    to_host,
)
from paddle_adagc.watch.writer import Writer, warn

CLOSE_SECONDS, EXIT_SECONDS = 60.0, 10.0
"""How long the disk may take at an end."""


class Guarded(KnownAttributes):
    """Errors of a record, and its end; a part of :class:`.Record`."""

    error: Exception | None
    start: int

    _at_exit: AtExit
    _clips: Clips
    _end_observing: Callable[[], None]
    _finish: Callable[[], None]
    _write: Callable[..., None]

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer  # the innermost
        self.error = None
        """Why the record ended early."""
        self._how: tuple[str, str] | None = None  # the run ends
        self._pid = os.getpid()
        self._is_over = False  # on all ranks, or closed
        self._writer: Writer | None = None  # of rank 0
        self._steps: list[Step] = []
        self._last_step = self.start = 0
        self._directory = Path()
        self._last_loss: Any = None
        self._sees_losses = False

    @property
    def directory(self) -> Path:
        """Folder of the record; on rank 0 where it is written."""
        if self._writer is not None:
            return self._writer.directory
        return self._directory

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
        kind, text = kind or ("disk" if is_disk else "unknown"), cause(error)
        if self._writer is not None:
            with contextlib.suppress(Exception):
                how = self._how or (kind, text)
                self._writer.close(self._ending(*how), 0)
        warn(
            f"the record {self.directory} ends after step {self._last_step}: "
            f"{text}"
        )

    def _leave_at_exit(self, kind: str, text: str) -> None:
        if self._pid != os.getpid():
            return
        self._finish()
        self._try(self._write_mine)
        self._stop(kind, text, EXIT_SECONDS)

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
                self._leave_at_exit("unknown", "nobody closed the record")

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


def cause(error: Exception | None) -> str:
    """Return what an exception says, or its name."""
    return str(error) or repr(error)
