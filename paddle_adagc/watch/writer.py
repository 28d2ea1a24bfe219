# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The thread of rank 0 that judges steps, writes them and raises alarms."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import queue
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.watch.judge import Judge
from paddle_adagc.watch.measure import Tensors, known
from paddle_adagc.watch.ring import Steps
from paddle_adagc.watch.store import RecordedRun, Replaced, Store

logger = logging.getLogger(__name__)

OnAlarm = Callable[[str], Any] | str | None
"""What gets each alarm, a line: a function, or a command of the shell."""

_BEAT_SECONDS = 2.0
_COMMAND_SECONDS = 10.0
_MAX_STEPS, _MAX_WAITING = 8192, 256 * 10**6  # bytes of tensors
_NUM_JUDGED = 68 * 64  # steps of earlier sessions that are judged again
_NUM_BEFORE, _NUM_AFTER = 64, 256  # steps around an alarm that are kept
_DIGITS = 6


@dataclasses.dataclass
class _Task:
    """Something to write."""

    write: Callable[[Store], Any]
    num_steps: int = 0
    num_bytes: int = 0


class Writer:
    """Takes steps, and never lets one wait for the disk.

    Where the disk refuses, it tries again; what does not fit into a bounded
    queue in the meantime is dropped and counted.

    Args:
        directory: Folder of the record.
        start: First step.
        facts: Those of the session.
        max_bytes: See :class:`.Store`.
        on_alarm: What gets each alarm's line.
        past: What earlier sessions have recorded.
    """

    def __init__(
        self,
        directory: Path,
        start: int,
        facts: Mapping[str, Any],
        max_bytes: int,
        on_alarm: OnAlarm = None,
        past: RecordedRun | None = None,
    ) -> None:
        self.directory = directory
        self.error: Exception | None = None
        """Why nothing is written any more."""
        self.dropped = 0
        self.events: list[Any] = []
        self._max_bytes, self._alarms = max_bytes, Alarms(on_alarm)
        self._analysis = _Analysis(start, past)
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._num_steps = self._num_bytes = 0  # that wait
        self._thread: threading.Thread | None = None
        self._deadline = math.inf
        self._refusal: Exception | None = None
        self._ending: Mapping[str, Any] = {}
        self.begin(start, facts)

    # ---- what the training calls: it puts something into a queue ------------

    def begin(self, start: int, facts: Mapping[str, Any]) -> None:
        """Begin a session."""
        self._queue.put(_Task(lambda store: store.begin(start, facts)))

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Change the facts of the session."""
        self._queue.put(_Task(lambda store: store.append((), facts=facts)))

    def put(self, steps: Steps, is_ours: bool) -> None:
        """Judge and write steps, to whose rows numbers may be added."""
        size = sum(table.nbytes for table in steps.tensors.values())
        num_steps = self._num_steps + len(steps.rows)
        if num_steps > _MAX_STEPS or self._num_bytes + size > _MAX_WAITING:
            self.dropped += len(steps.rows)
            return
        self._num_steps, self._num_bytes = num_steps, self._num_bytes + size
        self._queue.put((steps, is_ours, size))
        self.start()

    def alarm_nonfinite(self, step: int, loss: float) -> None:
        """Say at once that a loss is not finite."""
        self._queue.put((step, loss))
        self.start()

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def close(self, ending: Mapping[str, Any], timeout: float) -> int:
        """Write what waits and how the run ended.

        Returns:
            Steps that are still not written after ``timeout`` seconds.
        """
        self._ending = ending
        self._queue.put(None)
        self._deadline = time.monotonic() + timeout
        try:
            self.start()
        except RuntimeError:  # the interpreter ends: no new thread
            self._run()
        thread = self._thread
        if thread is not None and timeout:
            thread.join(timeout + 1)
        return self._num_steps

    @property
    def num_waiting(self) -> int:
        """Steps that are not written yet."""
        return self._num_steps

    # ---- the thread ---------------------------------------------------------

    def _run(self) -> None:
        # A forked child never closes it: the frame that holds it is lost there.
        store, waiting = None, deque[_Task]()
        is_over = False
        while not is_over and self.error is None:
            try:
                is_over = self._take(waiting)
                if store is None:
                    store = self._open()
                if not waiting:
                    store.beat()
                self._write(store, waiting)
                if is_over:
                    self._end(store, self._ending)
            except Replaced as error:
                self.error = error
            except (OSError, sqlite3.OperationalError) as error:
                self._say_refusal(store, error)
                is_over = is_over and self._wait_again()
            except Exception as error:
                self.error = error
        self._alarms.close()
        if store is not None:
            store.close()

    def _take(self, waiting: deque[_Task]) -> bool:
        """Judge what has come; return whether nothing will any more."""
        if self._deadline < math.inf and self._queue.empty():
            return True
        seconds = _BEAT_SECONDS if not waiting else _BEAT_SECONDS / 4
        try:
            job = self._queue.get(timeout=seconds)
            while job is not None:
                if isinstance(job, _Task):
                    waiting.append(job)
                elif len(job) == 2:
                    self._say(*self._analysis.nonfinite(*job))
                else:
                    waiting.append(self._judged(*job))
                job = self._queue.get_nowait()
        except queue.Empty:
            self._alarms.count()
            return False
        return True

    def _judged(self, steps: Steps, is_ours: bool, size: int) -> _Task:
        events, lines = self._analysis.add(steps, is_ours)
        self.events += events
        for line in lines:
            self._say(*line)
        alarms = [dataclasses.asdict(event) for event in events]
        kept = [
            (max(0, event.step - _NUM_BEFORE), event.step + _NUM_AFTER)
            for event in events
            if event.kind != "state"
        ]
        rows = [*map(_rounded, steps.rows)]
        given = rows, steps.keys, steps.tensors, alarms, kept
        return _Task(lambda store: store.append(*given), len(rows), size)

    def _say(self, kind: str, line: str) -> None:
        try:
            self._alarms.say(kind, line)
        except Exception as error:
            warn(f"an alarm was not passed on: {error}")

    def _open(self) -> Store:
        """Open the file; on the local disk if the one that was chosen fails."""
        try:
            return Store(self.directory, self._max_bytes)
        except (OSError, sqlite3.OperationalError) as error:
            local = Path(tempfile.mkdtemp(prefix="adagc-record-"))
            store = Store(local, self._max_bytes)
            warn(
                f"the record {self.directory} cannot be written ({error}): "
                f"it goes to {local}"
            )
            self.directory = local
            return store

    def _write(self, store: Store, waiting: deque[_Task]) -> None:
        while waiting:
            task = waiting[0]
            task.write(store)
            waiting.popleft()
            self._num_steps -= task.num_steps
            self._num_bytes -= task.num_bytes
        if self._refusal is not None:
            self._refusal = None
            store.end(None)
            logger.warning("the record %s is written again", self.directory)

    def _say_refusal(self, store: Store | None, error: Exception) -> None:
        if self._refusal is not None:
            return
        self._refusal = error
        warn(
            f"the record {self.directory} cannot be written ({error}); it is "
            "tried again, and the training goes on"
        )
        if store is not None:
            ending = {"kind": "disk", "text": str(error), "time": time.time()}
            self._end(store, {**self._ending, **ending})

    def _end(self, store: Store, ending: Mapping[str, Any]) -> None:
        try:
            store.end({**ending, "dropped": self.dropped})
        except (OSError, sqlite3.OperationalError):
            if self._refusal is None:
                raise

    def _wait_again(self) -> bool:
        """Wait before the last tries; return whether their time is over."""
        time.sleep(0.2)
        return time.monotonic() > self._deadline


class _Analysis:
    """What a run's steps say, in the thread."""

    def __init__(self, start: int, past: RecordedRun | None) -> None:
        self._judge, self._last = Judge(), start - 1
        norms, keys = np.zeros((0, 0), np.float32), []
        if past is not None:
            rows = [row for row in past.rows if row["step"] < start]
            for row in rows[-_NUM_JUDGED:]:
                self._judge.add(row["step"], _numbers(row))
            places = np.flatnonzero(past.tensor_steps < start)[-128:]
            norms, keys = past.tensors("norm", places), [*past.keys]
        self._tensors = Tensors(norms, keys)
        self._nonfinite: int | None = None

    def add(
        self, steps: Steps, is_ours: bool
    ) -> tuple[list[Any], list[tuple[str, str]]]:
        """Return events, and lines with their kinds."""
        named = self._tensors.add(steps, is_ours)
        events, lines = [], []
        for row, tensors in zip(steps.rows, named, strict=True):
            if row["step"] <= self._last:
                continue
            self._last = row["step"]
            found = self._judge.add(row["step"], _numbers(row))
            events += found
            lines += _lines(found, tensors, row["step"] == self._nonfinite)
            if row.get("skipped"):
                text = f"step {row['step']} was left out: {row['reason']}"
                lines.append(("skipped", text))
        return events, lines

    def nonfinite(self, step: int, loss: float) -> tuple[str, str]:
        """Return the line of a loss that was seen before its step is judged."""
        self._nonfinite = step
        return "end", f"step {step}: loss {loss}"


def _lines(
    events: Sequence[Any], tensors: Sequence[str], is_known: bool
) -> list[tuple[str, str]]:
    """Return a line for each kind of a step's events."""
    texts: dict[str, list[str]] = {}
    for event in events:
        kind = event.kind
        if kind == "state":
            kind = event.series
        elif kind == "end" and is_known:
            continue
        mine = texts.setdefault(kind, [])
        where = f"step {event.step}: " if mine else ""
        mine.append(event.text.removeprefix(where))
    if "spike" in texts:
        texts["spike"] += tensors
        if "end" in texts:
            texts["end"] += texts.pop("spike")
    return [(kind, "; ".join(found)) for kind, found in texts.items()]


class Alarms:
    """Passes lines on: one of a kind in an hour, then how many there were.

    Args:
        on_alarm: A function; a command of the shell, which gets the line on its
            standard input and ten seconds; None: a warning in the log.
    """

    def __init__(self, on_alarm: OnAlarm, every: float = 3600.0) -> None:
        self._on_alarm, self._every = on_alarm, every
        self._last: dict[str, float] = {}
        self._more: dict[str, int] = {}

    def say(self, kind: str, line: str) -> None:
        """Pass a line on, or count it."""
        now = time.monotonic()
        if now - self._last.get(kind, -math.inf) < self._every:
            self._more[kind] = self._more.get(kind, 0) + 1
            return
        self._last[kind] = now
        logger.warning("alarm: %s", line)
        if callable(self._on_alarm):
            self._on_alarm(line)
        elif self._on_alarm:
            run_command(self._on_alarm, line)

    def count(self, is_over: bool = False) -> None:
        """Say how many more there were, once their hour is over."""
        now = time.monotonic()
        for kind, number in [*self._more.items()]:
            if is_over or now - self._last[kind] >= self._every:
                del self._more[kind]
                logger.warning("alarm: %d more: %s", number, kind)

    def close(self) -> None:
        """Say what is left."""
        self.count(is_over=True)


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
            os.killpg(process.pid, signal.SIGKILL)
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


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    found = known(row)
    return {n: x for n, x in found.items() if isinstance(x, (int, float))}


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: float(f"{value:.{_DIGITS}g}")
        if isinstance(value, float)
        else value
        for name, value in known(row).items()
    }
