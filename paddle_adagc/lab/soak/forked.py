# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's processes, forked from one that has imported everything."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from paddle.distributed import parallel

from paddle_adagc.lab.gloo.rendezvous import free_port
from paddle_adagc.lab.soak.runs import Answer, Main, without_bar
from paddle_adagc.lab.train.processes import leave

_HOST = "127.0.0.1"
_ATTEMPTS = 500
_HUNG_SECONDS = 120.0
_ECHO_SECONDS, _LEFT_SECONDS = 0.3, 5.0
"""From a rank's end, by SIGKILL or otherwise, to that of the others."""

_NOISE = ("[20", "===", "FLAGS(", "warning: nccl", "warning: No shared comm")
"""Beginnings of Paddle's lines on stderr."""


class ForkedRun:
    """``tools/pretrain.py`` on one or more processes of this machine.

    The process that forks must not have trained: gloo's threads and a finished
    run's state would not survive.

    Args:
        main: The command.
        config_file: Of the run.
        num_ranks: Number of processes.
        logs: Folder for what they print.
    """

    def __init__(
        self,
        main: Main,
        config_file: Path,
        num_ranks: int,
        logs: Path,
    ) -> None:
        logs.mkdir(exist_ok=True)
        self._logs = [logs / f"rank{i}.log" for i in range(num_ranks)]
        self._file = config_file
        self._statuses: dict[int, int] = {}
        port = free_port()
        self._pids = []
        for rank in range(num_ranks):
            pid = os.fork()
            if pid == 0:
                self._become(rank, port, main)
            self._pids.append(pid)

    def _become(self, rank: int, port: int, main: Main) -> NoReturn:
        log = os.open(self._logs[rank], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        logging.getLogger().handlers.clear()  # warnings go to the log, too
        if len(self._logs) > 1:
            os.environ |= _environment(rank, len(self._logs), port)
            parallel._global_parallel_env = None  # read at an import
        if rank:
            _wait_for_store(port)
        status = 1
        try:
            leave(main([str(self._file)]))
        except SystemExit as error:
            status = int(error.code or 0)
        except KeyboardInterrupt:
            status = 128 + signal.SIGINT
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def is_running(self) -> bool:
        """Tell whether every process is alive."""
        for pid in self._pids:
            if pid not in self._statuses:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._statuses[pid] = os.waitstatus_to_exitcode(status)
        return not self._statuses

    def send(self, number: int, rank: int) -> None:
        """Send a signal to one process."""
        if self._pids[rank] not in self._statuses:
            os.kill(self._pids[rank], number)

    def wait(self) -> Answer:
        """Wait for all processes; like a launcher, end those left behind.

        Returns:
            Exit status of the first one, and what it said; None if one hung
            or printed a traceback.
        """
        hung = time.monotonic() + _HUNG_SECONDS
        while self.is_running() and time.monotonic() < hung:
            time.sleep(0.01)
        is_hung = self.is_running()
        was_killed = -signal.SIGKILL in self._statuses.values()
        left = time.monotonic() + (
            _ECHO_SECONDS if was_killed else _LEFT_SECONDS
        )
        while len(self._statuses) < len(self._pids):
            if is_hung or time.monotonic() > left:
                for rank in range(len(self._pids)):
                    self.send(signal.SIGKILL, rank)
            time.sleep(0.01)
            self.is_running()
        return self._answer(is_hung)

    def _answer(self, is_hung: bool) -> Answer:
        texts = [log.read_text(errors="replace") for log in self._logs]
        for text in texts:
            if is_hung or "Traceback" in text:
                return Answer(None, f"{'hung: ' * is_hung}{text}")
        said = without_bar(texts[0].replace(f"{self._file.parent}/", ""))
        lines = [
            line
            for line in said.splitlines()
            if not line.removeprefix("\x1b[33m").startswith(_NOISE)
        ]
        return Answer(self._statuses[self._pids[0]], "\n".join(lines))


def _wait_for_store(port: int) -> None:
    """Wait until rank 0 listens: Paddle pauses 3 s after a refused attempt."""
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(OSError):
            socket.create_connection((_HOST, port)).close()
            return
        time.sleep(0.02)


def _environment(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """Return what Paddle's launcher sets."""
    endpoints = [f"{_HOST}:{port + 1 + i}" for i in range(num_ranks)]
    return {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_RANK_IN_NODE": str(rank),
        "PADDLE_TRAINERS_NUM": str(num_ranks),
        "PADDLE_MASTER": f"{_HOST}:{port}",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_DISTRI_BACKEND": "gloo",
    }
