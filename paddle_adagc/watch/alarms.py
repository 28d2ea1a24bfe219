# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Alarms at once where somebody is: the log, and a command of the user's."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import time
import warnings
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

OnAlarm = Callable[[str], Any] | str | None
"""What gets each alarm, a line: a function, or a command of the shell."""

_COMMAND_SECONDS = 10.0
_EVERY_SECONDS = 3600.0


class Alarms:
    """Passes lines on: one of a kind in an hour, then how many there were.

    Args:
        on_alarm: A function; a command of the shell, which gets the line on its
            standard input and ten seconds; None: a warning in the log.
    """

    def __init__(self, on_alarm: OnAlarm) -> None:
        self._on_alarm = on_alarm
        self._last: dict[str, float] = {}
        self._more: dict[str, int] = {}

    def say(self, kind: str, line: str) -> None:
        """Pass a line on, or count it; warn if nobody takes it."""
        now = time.monotonic()
        if now - self._last.get(kind, -math.inf) < _EVERY_SECONDS:
            self._more[kind] = self._more.get(kind, 0) + 1
            return
        self._last[kind] = now
        logger.warning("alarm: %s", line)
        try:
            if callable(self._on_alarm):
                self._on_alarm(line)
            elif self._on_alarm:
                run_command(self._on_alarm, line)
        except Exception as error:
            warn(f"an alarm was not passed on: {error}")

    def count(self, is_over: bool = False) -> None:
        """Say how many more there were, once their hour is over."""
        now = time.monotonic()
        for kind, number in [*self._more.items()]:
            if is_over or now - self._last[kind] >= _EVERY_SECONDS:
                del self._more[kind]
                logger.warning("alarm: %d more: %s", number, kind)


def run_command(command: str, line: str) -> None:
    """Give a line to a command of the shell; end it after ten seconds."""
    with subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        try:
            process.communicate(f"{line}\n", timeout=_COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            # Nobody has waited for it, so its number is still its own.
            if os.getpgid(process.pid) == process.pid != os.getpgrp():
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise TimeoutError(
                f"{command!r} took longer than {_COMMAND_SECONDS:.0f} s"
            ) from None
    if process.returncode:
        raise RuntimeError(f"{command!r} returned {process.returncode}")


def warn(text: str) -> None:
    """Warn, even if warnings are errors."""
    try:
        warnings.warn(text, stacklevel=4)
    except UserWarning:  # python -W error
        logger.warning(text)
