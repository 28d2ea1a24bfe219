# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Alarms: what the judged steps say, passed on to where somebody is."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

from paddle_adagc.watch.analysis import Analysis
from paddle_adagc.watch.judge import Event
from paddle_adagc.watch.measure import Steps

logger = logging.getLogger(__name__)

OnAlarm = Callable[[str], Any] | str | None
"""What gets each alarm, a line: a function, or a command of the shell."""

_COMMAND_SECONDS = 10.0
_EVERY_SECONDS = 3600.0


class Alarms:
    """Passes lines on: one of a kind in an hour, then how many there were.

    Args:
        analysis: Judges the steps.
        on_alarm: A function; a command of the shell, which gets the line on its
            standard input and ten seconds; None: a warning in the log.
    """

    def __init__(self, analysis: Analysis, on_alarm: OnAlarm) -> None:
        self.analysis, self._on_alarm = analysis, on_alarm
        self._last: dict[str, float] = {}
        self._more: dict[str, int] = {}

    def judge(self, steps: Steps) -> list[Event]:
        """Judge the next steps, and pass on what began in them."""
        events, lines = self.analysis.add(steps)
        for kind, line in lines:
            self._say(kind, line)
        return events

    def nonfinite(self, step: int, loss: float) -> None:
        """Pass on a loss that was seen before its step is judged."""
        self._say("nan", self.analysis.nonfinite(step, loss))

    def _say(self, kind: str, line: str) -> None:
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
                logger.warning(
                    "alarm: %d more of kind %r came since", number, kind
                )


def run_command(command: str, line: str) -> None:
    """Give a line to a command of the shell; end it after ten seconds."""
    # A file: a pipe that the command closes could end this process, SIGPIPE.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        file.write(f"{line}\n")
        file.seek(0)
        process = subprocess.Popen(
            command, shell=True, stdin=file, start_new_session=True
        )
    try:
        status = process.wait(_COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        # Nobody has waited for it: its number is its own, and its group's.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise TimeoutError(
            f"{command!r} took longer than {_COMMAND_SECONDS:.0f} s"
        ) from None
    if status:
        raise RuntimeError(f"{command!r} returned {status}")


def warn(text: str) -> None:
    """Warn, even if warnings are errors."""
    try:
        warnings.warn(text, stacklevel=4)
    except UserWarning:  # python -W error
        logger.warning(text)
