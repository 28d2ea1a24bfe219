# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM end a run after the step, with a checkpoint."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import paddle
import paddle.distributed as dist
from typing_extensions import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ECHO_SECONDS = 2.0
"""A signal that follows sooner is no second request: Paddle's launcher sends
three SIGTERM, 0.2 s apart, and a terminal's Ctrl-C reaches it and the ranks."""


class Stopped(SystemExit):
    """A signal ended the run; the same command resumes it.

    Its ``exit_status`` is 130 after SIGINT, 143 after SIGTERM.

    Args:
        number: The signal.
        checkpoint: What was saved.
    """

    def __init__(self, number: int, checkpoint: Path) -> None:
        self.exit_status = 128 + number
        super().__init__(self.exit_status)
        self._number, self._checkpoint = number, checkpoint

    def __str__(self) -> str:
        """One line for the user."""
        name = signal.Signals(self._number).name
        return (
            f"stopped by {name}: saved {self._checkpoint}; the same command "
            "resumes"
        )


class StopRequest:
    """Take note of SIGINT and SIGTERM while training; a second one exits.

    All ranks have to stop after the same step, whichever got the signal. Over
    gloo they exchange their notes after every step, 4 bytes on the host. On
    GPUs an exchange makes the host wait for the device: it is done where losses
    are exchanged anyway, every ``log_every`` steps. One process exchanges
    nothing.

    Args:
        log_every: Steps between two exchanges on GPUs.
    """

    def __init__(self, log_every: int) -> None:
        self._every = log_every if paddle.is_compiled_with_cuda() else 1
        self._number = 0
        self._time = 0.0
        self._is_ending = False
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers; outside of the main thread do nothing."""
        try:
            for number in _SIGNALS:
                self._earlier[number] = signal.signal(number, self._note)
        except ValueError:  # not the main thread
            return self
        _ACTIVE.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        """Put the earlier handlers back, unless the process is to end.

        The launcher's signal may reach some ranks when the others have agreed.
        """
        if not self._is_ending:
            for number, handler in self._earlier.items():
                signal.signal(number, handler)
        if self in _ACTIVE:
            _ACTIVE.remove(self)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._number and now - self._time > _ECHO_SECONDS:
            os._exit(128 + number)
        if not self._number:
            self._number, self._time = number, now

    def agreed(self, step: int) -> int:
        """Return the signal that ends the run now, on all ranks; 0: none.

        Args:
            step: Optimizer steps made; the same on every rank that calls.
        """
        number = self._number
        if dist.get_world_size() > 1:
            if step % self._every:
                return 0
            note = paddle.to_tensor([number], "int32")
            dist.all_reduce(note, op=dist.ReduceOp.MAX)
            number = int(note)
        self._is_ending = number != 0
        return number


def _restore_in_child() -> None:
    """Let a forked process, such as a data loader, end by SIGTERM."""
    if _ACTIVE:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


_ACTIVE: list[StopRequest] = []
os.register_at_fork(after_in_child=_restore_in_child)
