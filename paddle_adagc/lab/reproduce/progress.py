# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How far runs are: a bar on a terminal, else a plain line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from tqdm import tqdm

SECONDS = 15.0
"""Least time between two plain lines."""


class Progress:
    """Shows steps on standard error.

    Args:
        num_runs: Runs to make.
        num_jobs: Runs at a time.
        clock: Seconds.
    """

    def __init__(
        self,
        num_runs: int,
        num_jobs: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_runs, self._num_jobs = num_runs, num_jobs
        self._clock = clock
        self._started = self._said = clock()
        self._first: int | None = None
        self._bar: tqdm | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._bar = tqdm(unit="step", smoothing=0.05)
        else:
            self._say(f"{self._num_runs} runs, {self._num_jobs} at a time")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, num_steps: int, total: int, num_ended: int) -> None:
        """Show the state, if the last line is old enough.

        Args:
            num_steps: Steps made, also before this command.
            total: Steps of all runs.
            num_ended: Runs that have ended.
        """
        if self._bar is not None:
            self._bar.total, self._bar.n = total, num_steps
            self._bar.set_postfix_str(f"{num_ended} of {self._num_runs} runs")
            return
        now = self._clock()
        if self._first is None:
            self._first = num_steps
        if now - self._said < SECONDS:
            return
        self._said = now
        taken = now - self._started
        line = (
            f"{tqdm.format_interval(taken)}  {num_steps:,} of {total:,} steps, "
            f"{num_ended} of {self._num_runs} runs done"
        )
        if num_steps > self._first:
            left = taken / (num_steps - self._first) * (total - num_steps)
            line += f", about {tqdm.format_interval(left)} left"
        self._say(line)

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
