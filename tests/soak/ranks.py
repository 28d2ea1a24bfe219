# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's processes, forked from one that has imported everything.

That one has never trained: gloo's threads and a finished run's state would not
survive a fork. Unlike those of ``core.parallel.ranks`` these processes are
real commands, which may be killed.
"""

import multiprocessing
import os
import signal
import socket
import time
import traceback
from multiprocessing.connection import wait

from paddle.distributed import parallel
from pages import load_tool

from paddle_adagc.lab.gloo.rendezvous import free_port
from paddle_adagc.lab.train.processes import leave

main = load_tool("pretrain").main

_HOST = "127.0.0.1"
_HUNG_SECONDS = 120.0
_ECHO_SECONDS, _LEFT_SECONDS = 0.3, 5.0
"""From a rank's end, by SIGKILL or otherwise, to that of the others."""

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["paddlenlp", __name__])


def start(config_file, num_ranks):
    """Start the command; ``<config_file>.log0`` is what rank 0 says."""
    arguments = str(config_file), num_ranks, free_port()
    ranks = [
        _FORKS.Process(target=_become, args=(rank, *arguments))
        for rank in range(num_ranks)
    ]
    for rank in ranks:
        rank.start()
    return ranks


def wait_for(ranks):
    """Wait for all processes; like a launcher, end those left behind."""
    is_hung = not wait([rank.sentinel for rank in ranks], _HUNG_SECONDS)
    was_killed = -signal.SIGKILL in [rank.exitcode for rank in ranks]
    end = time.monotonic() + (_ECHO_SECONDS if was_killed else _LEFT_SECONDS)
    for rank in ranks:
        rank.join(0 if is_hung else max(end - time.monotonic(), 0))
        rank.kill()
        rank.join()
    if is_hung:
        raise TimeoutError(f"no rank ended in {_HUNG_SECONDS:.0f} s")


def _become(rank, config_file, num_ranks, port):
    """The life of one rank; the environment is that of Paddle's launcher."""
    with open(f"{config_file}.log{rank}", "wb") as log:
        os.dup2(log.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if num_ranks > 1:
        endpoints = [f"{_HOST}:{port + 1 + i}" for i in range(num_ranks)]
        os.environ |= {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_RANK_IN_NODE": str(rank),
            "PADDLE_TRAINERS_NUM": str(num_ranks),
            "PADDLE_MASTER": f"{_HOST}:{port}",
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
            "PADDLE_DISTRI_BACKEND": "gloo",
        }
        parallel._global_parallel_env = None  # read at an import
    # Wait until rank 0 listens: Paddle pauses 3 s after a refused attempt.
    while rank and socket.socket().connect_ex((_HOST, port)):
        time.sleep(0.02)
    try:
        leave(main([config_file]))
    except Exception:
        traceback.print_exc()
        os._exit(1)
