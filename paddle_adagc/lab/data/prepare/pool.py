# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Worker processes, each with one chunk at a time.

A pipe per worker instead of ``concurrent.futures``: the reader never runs
ahead of the workers, a worker whose parent was killed ends by itself, and a
worker that was killed is noticed.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType

from paddle_adagc.lab.data.prepare.chunks import Chunk
from paddle_adagc.lab.data.prepare.encode import Encoder, Job, Result

_Key = tuple[float, float]
_AFTER_ALL = (math.inf, math.inf)


class WorkerPool:
    """Context manager around ``num_workers`` processes.

    At most ``num_workers + 2`` chunks are in memory.
    """

    def __init__(self, num_workers: int, job: Job) -> None:
        # forkserver: workers share the pages of the imported modules, and
        # inherit no file of this process.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._workers: dict[Connection, BaseProcess] = {}
        self._busy: dict[Connection, tuple[int, int, str]] = {}
        with _no_interrupt_for_children():
            for _ in range(num_workers):
                here, there = context.Pipe()
                process = context.Process(
                    target=_work, args=(there, job), daemon=True
                )
                process.start()
                there.close()
                self._workers[here] = process

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._workers:
            connection.close()
        for process in self._workers.values():
            process.join()

    def run(self, chunks: Iterator[Chunk]) -> Iterator[Result]:
        """Process ``chunks``; results come in any order.

        Raises:
            ValueError, OSError: The first error in the order of the chunks,
                after the chunks in hand are done.
            RuntimeError: A worker died.
        """
        failures: dict[_Key, Exception] = {}
        idle = list(self._workers)
        while not failures:
            try:
                chunk = next(chunks, None)
            except (ValueError, OSError) as error:
                failures[_AFTER_ALL] = error
                break
            if chunk is None:
                break
            if not idle:
                idle, results = self._collect(failures)
                yield from results
                if failures:
                    break
            connection = idle.pop()
            self._busy[connection] = chunk.source, chunk.index, chunk.name
            self._send(connection, chunk)
        while self._busy:
            yield from self._collect(failures)[1]
        if failures:
            raise failures[min(failures)]

    def _send(self, connection: Connection, chunk: Chunk) -> None:
        try:
            connection.send(chunk)
        except BrokenPipeError as error:
            raise self._death_of(connection) from error

    def _collect(
        self, failures: dict[_Key, Exception]
    ) -> tuple[list[Connection], list[Result]]:
        """Wait for a worker; return the finished workers and their results."""
        done = [c for c in wait(list(self._busy)) if isinstance(c, Connection)]
        results: list[Result] = []
        for connection in done:
            try:
                answer = connection.recv()
            except (EOFError, ConnectionResetError) as error:
                raise self._death_of(connection) from error
            source, index, _ = self._busy.pop(connection)
            if isinstance(answer, Result):
                results.append(answer)
            else:
                failures[source, index] = answer
        return done, results

    def _death_of(self, connection: Connection) -> RuntimeError:
        process = self._workers[connection]
        process.join()
        name = self._busy[connection][2]
        return RuntimeError(
            f"a worker died (exit code {process.exitcode}) on a part of "
            f"{name}: out of memory? Run the same command again to go on, "
            "with fewer workers or smaller chunks"
        )


@contextlib.contextmanager
def _no_interrupt_for_children() -> Iterator[None]:
    """Keep Ctrl-C from processes started here: the parent decides.

    They inherit the blocked signal, so that it cannot come while they start.
    """
    # It would unblock the signal again, if it were started later.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, job: Job) -> None:
    """Process chunks until the other end of the pipe is closed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker is one thread
    encoder = Encoder(job)
    try:
        while True:
            chunk = connection.recv()
            try:
                answer: Result | Exception = encoder.process(chunk)
            except (ValueError, OSError) as error:
                answer = error
            connection.send(answer)
    except (EOFError, ConnectionError):
        return
