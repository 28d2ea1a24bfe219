# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a command as its own shell would: with its signals, and no orphans."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence

from paddle_adagc.integrations.run.isolation import (
    descendants,
    left_behind,
    outsiders,
    parent_of,
)
from paddle_adagc.integrations.run.process import say
from paddle_adagc.integrations.run.reports import (
    Listener,
    adopted_orphans,
    end_with_parent,
)

_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_SI_KERNEL = 0x80
_FIRST_LOOK, _LAST_LOOK = 1.0, 10.0  # seconds between looks for outsiders
_START = 60.0  # seconds that what is left has to load Paddle
_LAST_BREATH = 0.5  # seconds in which processes end with the command


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    listener: Listener,
    found: dict[int, str],
    is_strict: bool,
) -> int:
    """Run a command until it and its training processes have ended.

    Signals reach it. Those of a terminal reach it without us. If this process
    dies, the command gets SIGTERM. A Python or shell that it leaves behind is
    waited for: as long as it trains, or for a minute until it has loaded
    Paddle.

    Args:
        command: Its words.
        environment: Its environment.
        listener: Knows the processes that train.
        found: Gets the processes that run Paddle without ``adagc-run``.
        is_strict: End the command with SIGTERM when there is one.

    Returns:
        Its exit status, 128 + N after signal N.
    """
    ignored = {n for n in _FORWARDED if signal.getsignal(n) == signal.SIG_IGN}
    ours = {*_FORWARDED} - ignored | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        end_with_parent()

    try:
        with adopted_orphans():
            others = descendants(os.getpid())
            process = subprocess.Popen(
                command, env=dict(environment), preexec_fn=prepare
            )
            listener.start()
            watch = _Watch(process, listener, found, is_strict, others)
            while not watch.has_ended():
                info = signal.sigtimedwait(ours, 0.2)
                if info and info.si_signo == signal.SIGCHLD:
                    _bury(descendants(os.getpid()) - others - {process.pid})
                elif info:
                    watch.forward(info.si_signo, info.si_code == _SI_KERNEL)
        status = process.wait()
        return status if status >= 0 else 128 - status
    finally:
        while signal.sigtimedwait(ours - {*_FORWARDED}, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _bury(pids: Iterable[int]) -> None:
    """Let adopted processes that have ended go: nobody else waits for them."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):  # not adopted
            os.waitpid(pid, os.WNOHANG)


class _Watch:
    """The command and the processes that train in it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        listener: Listener,
        found: dict[int, str],
        is_strict: bool,
        others: set[int],
    ) -> None:
        self._process, self._listener = process, listener
        self._found, self._is_strict = found, is_strict
        self._others = others
        self._pause = _FIRST_LOOK
        self._next_look = time.monotonic() + self._pause
        self._suspects: dict[int, str] = {}
        self._end, self._waits, self._signal = math.inf, False, 0
        self._left: set[int] = set()  # of the command, which has ended

    def has_ended(self) -> bool:
        self._look()
        if self._process.poll() is None:
            return False
        now, left = time.monotonic(), {*self._listener.running}
        self._end = min(self._end, now)
        if now < self._end + _START:
            pids = descendants(os.getpid()) - self._others
            # Just after a fork, what will be a Python may be anything.
            left |= left_behind(pids, trains=now > self._end + _LAST_BREATH)
        if left and now > self._end + _LAST_BREATH and not self._waits:
            self._waits = True
            say(f"the command has ended, not {len(left)} of its processes")
            if self._signal:  # which it did not pass on
                self._send(left, self._signal)
        self._left = left
        return not left

    def forward(self, number: int, is_terminals: bool) -> None:
        """Send a signal to the command, and to what trains below a shell."""
        if is_terminals:
            return
        self._signal = number
        pids = {*self._listener.running} | self._left
        targets = {pid for pid in pids if parent_of(pid) not in pids}
        if self._process.poll() is None:
            if self._process.pid in pids:
                targets.clear()  # it is a launcher, or trains itself
            targets.add(self._process.pid)
        self._send(targets, number)

    @staticmethod
    def _send(pids: Iterable[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _look(self) -> None:
        """Find processes that run Paddle without us, twice in a row."""
        if time.monotonic() < self._next_look:
            return
        insiders = {*self._listener.running} | self._others
        now = outsiders(os.getpid(), insiders)
        for pid in now.keys() & self._suspects.keys() - self._found.keys():
            self._found[pid] = now[pid]
            say(f"process {pid} runs Paddle without adagc-run: {now[pid]}")
            if self._is_strict:
                say("ends the command. To train so: --no-strict-run")
                os.kill(pid, signal.SIGTERM)
                self._process.terminate()
        self._suspects = now
        self._pause = min(self._pause * 1.2, _LAST_LOOK)
        self._next_look = time.monotonic() + self._pause
