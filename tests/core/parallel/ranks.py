# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a function on real ranks: processes that talk over gloo.

A fork server imports Paddle once, and forks the ranks of every call: so a call
costs no import, no state is left from the one before, and the pytest process
itself never joins a process group.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any

import gloo_fleet
import paddle
import paddle.distributed as dist
from gloo_fleet.rendezvous import free_port
from paddle.distributed import fleet
from paddle.distributed.parallel import parallel_helper

_HOST = "127.0.0.1"
_TESTS = Path(__file__).resolve().parents[2]
_LOG_TAIL = 4000
_GRACE = 0.3  # seconds for what the other ranks do without the failed one
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", "paddle.distributed.fleet"])


def run_on_ranks(
    function: Callable[..., Any],
    world_size: int,
    *,
    timeout: float = 600.0,
    **arguments: Any,
) -> list[Any]:
    """Call ``function(**arguments)`` on every rank of a fresh gloo world.

    The function stands at the top level of a module; its arguments and what it
    returns are picklable (arrays instead of tensors). The CPU backend is
    enabled and the default process group exists when it starts. Gives the
    results by rank; a RuntimeError holds the traceback of a rank that failed, a
    TimeoutError each rank's stack.
    """
    task, port = pickle.dumps((function, arguments)), free_port()
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        job = Path(folder)
        ranks = {}
        for rank in range(world_size):
            process = _FORKS.Process(
                target=_run_rank,
                args=(job, task, _environment(rank, world_size, port), timeout),
            )
            process.start()
            ranks[process.sentinel] = process
        deadline, waiting = time.monotonic() + timeout, {**ranks}
        try:
            while waiting:
                left = deadline - time.monotonic()
                ended = connection.wait([*waiting], max(left, 0.0))
                if not ended:
                    raise TimeoutError(
                        f"{function.__qualname__} on {world_size} ranks was "
                        f"not done after {timeout:.0f} s\n{_logs(job)}"
                    )
                for process in map(waiting.pop, ended):
                    process.join()
                    if process.exitcode:
                        time.sleep(_GRACE)
                        raise RuntimeError(
                            f"{function.__qualname__} failed\n{_logs(job)}"
                        )
        finally:
            for process in ranks.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.join()
        return [
            pickle.loads((job / f"{rank}.pkl").read_bytes())
            for rank in range(world_size)
        ]


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PADDLE_")}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "GLOG_minloglevel": "2",
        "PADDLE_DISTRI_BACKEND": "gloo",
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_RANK_IN_NODE": str(rank),
        "PADDLE_TRAINERS_NUM": str(world_size),
        "PADDLE_MASTER": f"{_HOST}:{port}",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(
            f"{_HOST}:{port + 1 + i}" for i in range(world_size)
        ),
        "PADDLE_CURRENT_ENDPOINT": f"{_HOST}:{port + 1 + rank}",
    }


def _logs(job: Path) -> str:
    """What ranks said, in the order in which they failed."""
    logs = sorted(job.glob("*.log"), key=lambda log: log.stat().st_mtime)
    return "\n".join(
        f"--- rank {log.stem}\n{log.read_text(errors='replace')[-_LOG_TAIL:]}"
        for log in logs
    )


def _run_rank(
    job: Path, task: bytes, environment: dict[str, str], timeout: float
) -> None:
    """The life of one rank."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = str(job)  # which is removed
    sys.path[:0] = [str(_TESTS), str(_TESTS.parent)]
    rank, port = (
        environment[name].split(":")[-1]
        for name in ("PADDLE_TRAINER_ID", "PADDLE_MASTER")
    )
    log = os.open(job / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.dump_traceback_later(0.8 * timeout, file=log)
    status = 1
    try:
        while rank != "0" and not _listens(int(port)):
            time.sleep(0.01)  # Paddle pauses 3 s after a refused attempt
        gloo_fleet.enable()
        dist.init_parallel_env()
        function, arguments = pickle.loads(task)
        result = function(**arguments)
        (job / f"{rank}.pkl").write_bytes(pickle.dumps(result))
        if dist.is_initialized():  # several ranks
            dist.barrier()  # others may still use a store of ours
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0


def let_formers_start_fleet():
    """These ranks have joined before it looks: it then leaves fleet alone."""
    parallel_helper._is_parallel_ctx_initialized = lambda: hasattr(
        fleet.fleet, "_hcg"
    )
    paddle.device.synchronize = lambda: None  # it knows no CPU
