# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Alarms: what a running training's steps say, passed on to somebody.

NumPy alone.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paddle_adagc.watch.judge import Event, Judge
from paddle_adagc.watch.measure import Steps
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.tensors import NUM_BEFORE, find_guilty

logger = logging.getLogger(__name__)

OnAlarm = Callable[[str], Any] | str | None
"""What gets each alarm, a line: a function, or a command of the shell."""

_COMMAND_SECONDS = 10.0
_EVERY_SECONDS = 3600.0
_NUM_JUDGED = 68 * 64  # steps of earlier sessions that are judged again
_NUM_NAMED = 3


class Alarms:
    """Judges each step by the ones before, and says what began in it.

    Args:
        start: First step.
        past: What earlier sessions have recorded.
        on_alarm: A function; a command of the shell, which gets the line on its
            standard input and ten seconds; None: a warning in the log.
    """

    def __init__(
        self,
        start: int,
        past: RecordedRun | None = None,
        on_alarm: OnAlarm = None,
    ) -> None:
        self.events: list[Event] = []
        self._on_alarm = on_alarm
        self._last_line: dict[str, float] = {}
        self._judge, self._last = Judge(), start - 1
        self._nonfinite: int | None = None  # a step whose loss was seen
        self._keys: dict[str, int] = {}
        self._norms = deque[tuple[int, np.ndarray]](maxlen=NUM_BEFORE)
        if past is not None:
            rows = [row for row in past.rows if row["step"] < start]
            for row in rows[-_NUM_JUDGED:]:
                self._judge.add(row["step"], _numbers(row))
            places = np.flatnonzero(past.tensor_steps < start)[-NUM_BEFORE:]
            steps = past.tensor_steps[places].tolist()
            norms = past.tensors("norm", places)
            self._norms.extend(zip(steps, norms, strict=True))
            self._keys = {key: i for i, key in enumerate(past.keys)}

    def judge(self, steps: Steps) -> list[Event]:
        """Judge the next steps; say and return what began in them."""
        for key in steps.keys:
            self._keys.setdefault(key, len(self._keys))
        order = [self._keys[key] for key in steps.keys]
        events: list[Event] = []
        for i, row in enumerate(steps.rows):
            step = row["step"]
            if not np.isnan(steps.tensors["h"][i]).all():
                norm = np.full(len(self._keys), np.nan, np.float32)
                norm[order] = steps.tensors["norm"][i]
                self._norms.append((step, norm))
            if step <= self._last:
                continue
            self._last = step
            if found := self._judge.add(step, _numbers(row)):
                events += found
                self.events += found
                self._say_all(found, step)
            if row.get("skipped"):
                text = f"step {step} was left out: {row['reason']}"
                self._say("skipped", text)
        return events

    def _say_all(self, events: Sequence[Event], now: int) -> None:
        """Say what began, in a line, under the kind of its first event.

        NaN comes first, and loss before norm, so no norm silences a loss.
        """
        said = "nan", self._nonfinite
        mine = [e for e in events if (e.kind, e.step) != said]
        mine.sort(key=lambda event: event.kind)
        if not mine:
            return
        where = f"; step {mine[0].step}: "
        text = "; ".join(e.text for e in mine).replace(where, "; ")
        if spikes := [e.step for e in mine if e.kind == "spike"]:
            text = "; ".join([text, *self._named(min(spikes), now)])
        self._say(f"{mine[0].series} {mine[0].kind}", text)

    def _named(self, first: int, last: int) -> list[str]:
        """Name the tensors that left their usual norms."""
        table = np.full((len(self._norms), len(self._keys)), np.nan)
        for row, (_, mine) in zip(table, self._norms, strict=True):
            row[: len(mine)] = mine
        steps = np.array([step for step, _ in self._norms], np.int64)
        found = find_guilty(steps, table, [*self._keys], first, last)
        return [
            f"{one.key} (Inf or NaN)"
            if np.isinf(one.norm)
            else f"{one.key} ({one.ratio:.3g} times its usual norm)"
            for one in found.guilty[:_NUM_NAMED]
        ]

    def nonfinite(self, step: int, loss: float) -> None:
        """Say that a loss is not finite, before its step is judged."""
        self._nonfinite = step
        self._say("loss nan", f"step {step}: loss {loss}")

    def _say(self, kind: str, line: str) -> None:
        """Pass a line on, one of a kind in an hour; warn if it fails."""
        now = time.monotonic()
        if now - self._last_line.get(kind, -math.inf) < _EVERY_SECONDS:
            return
        self._last_line[kind] = now
        logger.warning("alarm: %s", line)
        try:
            if callable(self._on_alarm):
                self._on_alarm(line)
            elif self._on_alarm:
                run_command(self._on_alarm, line)
        except Exception as error:
            warn(f"an alarm was not passed on: {error}")


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


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    return {n: x for n, x in row.items() if isinstance(x, (int, float))}
