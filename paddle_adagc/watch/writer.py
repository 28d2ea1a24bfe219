# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The thread of rank 0 that judges steps and writes them."""

from __future__ import annotations

import dataclasses
import logging
import queue
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paddle_adagc.watch.alarms import Alarms, OnAlarm, warn
from paddle_adagc.watch.measure import Steps
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.store import Replaced, Store

logger = logging.getLogger(__name__)

_BEAT_SECONDS = 2.0
_AGAIN_SECONDS = 0.5  # until what the disk has refused is tried again
_MOST_WAITING = 256 * 10**6  # bytes
_ROW_BYTES = 4096  # of a step's own numbers, at most about
_DIGITS = 9  # a float32 comes back bit for bit
_REFUSALS = OSError, sqlite3.OperationalError


class Writer:
    """Takes steps, and never lets one wait for the disk.

    Where the disk refuses, it tries again; what does not fit into a bounded
    queue in the meantime is dropped and counted. ``start`` is the session's
    first step, ``past`` what earlier sessions have recorded.
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
        self.dropped = self._num_put = self._num_written = 0  # steps
        self._refusal: Exception | None = None  # of the disk, just now
        self._max_bytes = max_bytes
        self.alarms = Alarms(start, past, on_alarm)
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._unwritten = deque[tuple[int, Callable[[Store], Any]]]()
        self._thread: threading.Thread | None = None
        self._ending: tuple[Mapping[str, Any], float] | None = None
        """What there is to say at the end, and until when it is tried."""
        self.write(lambda store: store.begin(start, facts))

    @property
    def num_waiting(self) -> int:
        """Steps that are not written yet."""
        return max(self._num_put - self._num_written, 0)

    # ---- what the training calls: it puts something into a queue ------------

    def write(self, task: Callable[[Store], Any]) -> None:
        """Let the thread write something that is no step."""
        self._queue.put(lambda: self._unwritten.append((0, task)))

    def put(self, steps: Steps) -> None:
        """Judge and write steps."""
        num = len(steps.rows)
        size = sum(table[:1].nbytes for table in steps.tensors.values())
        if (self.num_waiting + num) * (size + _ROW_BYTES) > _MOST_WAITING:
            self.dropped += num
            return
        self._queue.put(lambda: self._judge(steps))
        self._num_put += num  # last: an interrupted put is repeated
        self.start()

    def alarm_nonfinite(self, step: int, loss: float) -> None:
        """Say at once that a loss is not finite."""
        self._queue.put(lambda: self.alarms.nonfinite(step, loss))
        self.start()

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def sync(self, timeout: float) -> Exception | None:
        """Wait until all steps so far are on the disk.

        Returns:
            Why they are not, ``timeout`` seconds later.
        """
        written = threading.Event()
        self.write(lambda store: written.set())
        self.start()
        end = time.monotonic() + timeout
        while not written.wait(0.02):
            if self.error is not None or time.monotonic() > end:
                what = f"{self.directory}: not written in {timeout:g} seconds"
                return self.error or self._refusal or TimeoutError(what)
        if self.dropped:
            return OSError(f"{self.directory} lacks {self.dropped} steps")
        return None

    def close(self, ending: Mapping[str, Any], timeout: float) -> int:
        """Write what waits and how the run ended.

        Returns:
            Steps that are still not written after ``timeout`` seconds. 0 to
            the thread itself, where a record may be collected as garbage: it
            goes on to write them.
        """
        self._ending = ending, time.monotonic() + timeout
        self._queue.put(lambda: None)
        if self._thread is threading.current_thread():
            return 0
        try:
            self.start()
        except RuntimeError:  # the interpreter ends: no new thread
            self._run()
        self.wait(timeout and timeout + 1)
        return self.num_waiting

    def wait(self, seconds: float) -> None:
        """Wait for the thread's end, which :meth:`close` has asked for."""
        thread = self._thread
        is_other = thread is not threading.current_thread()
        if thread is not None and is_other and thread.is_alive() and seconds:
            thread.join(seconds)

    # ---- the thread ---------------------------------------------------------

    def _run(self) -> None:
        # A forked child never closes it: the frame that holds it is lost there.
        store, is_over = None, False
        while not is_over and self.error is None:
            try:
                is_over = self._take()
                store = store or self._open()
                self._write(store)
                if self._refusal is not None:
                    self._refusal = None
                    store.end(None)
                    logger.warning("%s is written again", self.directory)
                if is_over and self._ending is not None:
                    store.end({**self._ending[0], "dropped": self.dropped})
            except _REFUSALS as error:
                if self._refusal is None:
                    self._say_refusal(store, error)
                self._refusal = error
                is_over = is_over and self._is_too_late()
            except Exception as error:
                self.error = error
        if store is not None:
            store.close()

    def _take(self) -> bool:
        """Judge what has come; return whether nothing will any more."""
        seconds = _AGAIN_SECONDS if self._unwritten else _BEAT_SECONDS
        is_over = self._ending is not None
        try:
            self._queue.get(timeout=0.0 if is_over else seconds)()
            while True:
                self._queue.get_nowait()()
        except queue.Empty:
            return is_over

    def _judge(self, steps: Steps) -> None:
        alarms = [*map(dataclasses.asdict, self.alarms.judge(steps))]
        rows = [{n: _rounded(x) for n, x in row.items()} for row in steps.rows]
        given = rows, steps.keys, steps.tensors
        task = len(steps.rows), lambda store: store.append(*given, alarms)
        self._unwritten.append(task)

    def _open(self) -> Store:
        """Open the file; on the local disk if the one that was chosen fails."""
        try:
            return Store(self.directory, self._max_bytes)
        except _REFUSALS as error:
            local = Path(tempfile.mkdtemp(prefix="adagc-record-"))
            try:
                store = Store(local, self._max_bytes)
            except BaseException:
                shutil.rmtree(local, ignore_errors=True)
                raise
            warn(
                f"the record {self.directory} cannot be written ({error}): "
                f"it goes to {local}"
            )
            self.directory = local
            return store

    def _write(self, store: Store) -> None:
        if not self._unwritten:
            store.beat()
        while self._unwritten:
            num_steps, task = self._unwritten[0]
            task(store)
            self._unwritten.popleft()
            self._num_written += num_steps

    def _say_refusal(self, store: Store | None, error: Exception) -> None:
        warn(
            f"the record {self.directory} cannot be written ({error}); it is "
            "tried again, and the training goes on"
        )
        if store is not None:
            how = {"kind": "disk", "text": str(error), "time": time.time()}
            known = self._ending[0] if self._ending is not None else {}
            try:
                store.end({**known, **how, "dropped": self.dropped})
            except (Replaced, *_REFUSALS) as other:
                logger.warning("nor can that be written: %s", other)

    def _is_too_late(self) -> bool:
        """Wait before the last tries; return whether their time is over."""
        time.sleep(0.2)
        return self._ending is None or time.monotonic() > self._ending[1]


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_rounded, value)]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
