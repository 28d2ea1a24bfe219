# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a function on real ranks: processes that talk over gloo.

A launcher imports Paddle once, and lives as long as the pytest process. It
forks a supervisor for every call, which forks the ranks: so a call costs no
import, no state is left from the one before, and the pytest process itself
never joins a process group.
"""

import atexit
import contextlib
import faulthandler
import functools
import importlib.util
import inspect
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_HOST = "127.0.0.1"
_TESTS = Path(__file__).resolve().parents[2]
_LOG_TAIL = 4000
_MOST_SECONDS_TO_START = 300.0


def run_on_ranks(
    function: Callable[..., Any],
    world_size: int,
    *,
    timeout: float = 120.0,
    **arguments: Any,
) -> list[Any]:
    """Call ``function(**arguments)`` on every rank of a fresh gloo world.

    The function stands at the top level of a file; its arguments and what it
    returns are picklable (arrays instead of tensors). The CPU backend is
    enabled and the default process group exists when it starts; ``start_fleet``
    sets up hybrid parallelism. Gives the results by rank; a RuntimeError holds
    the traceback of a rank that failed, a TimeoutError each rank's stack.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        job = Path(folder)
        (job / "job.pkl").write_bytes(
            pickle.dumps(
                {
                    "file": inspect.getsourcefile(function),
                    "name": function.__qualname__,
                    "world_size": world_size,
                    "arguments": arguments,
                    "timeout": timeout,
                    "environment": _environment(),
                }
            )
        )
        launcher = _launcher()
        print(job, file=launcher.stdin, flush=True)
        supervisor = int(launcher.stdout.readline())  # leads its own session
        status = job / "status"
        try:
            _wait(
                lambda: (
                    status.exists()
                    or len([*job.glob("*.started")]) == world_size
                ),
                _MOST_SECONDS_TO_START,
            )
            _wait(status.exists, timeout)
        except TimeoutError:
            raise TimeoutError(
                f"{function.__qualname__} on {world_size} ranks was not done "
                f"after {timeout:.0f} s\n{_logs(job)}"
            ) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(supervisor, signal.SIGKILL)
        if status.read_text() != "0":
            raise RuntimeError(
                f"{function.__qualname__} failed\n{_failure(job)}"
            )
        return [
            pickle.loads((job / f"rank{rank}.pkl").read_bytes())
            for rank in range(world_size)
        ]


def start_fleet(
    *,
    dp: int = 1,
    mp: int = 1,
    pp: int = 1,
    sharding: int = 1,
    sep: int = 1,
    cp: int = 1,
    ep: int = 1,
    moe_sharding: int = 1,
    num_micro_batches: int = 1,
    micro_batch_size: int = 1,
    configs: dict[str, dict[str, Any]] | None = None,
) -> Any:
    """Call ``fleet.init`` with these degrees; return the topology.

    With experts the sharding degree is ``ep * moe_sharding / mp``; ``cp`` parts
    of a sequence lie on ranks of the sharding group. ``configs`` are options by
    section of ``hybrid_configs``, such as ``{"sharding_configs":
    {"split_param": True}}``.
    """
    from paddle.distributed import fleet

    strategy = fleet.DistributedStrategy()
    hybrid = {
        "dp_degree": dp,
        "mp_degree": mp,
        "pp_degree": pp,
        "sharding_degree": sharding,
        "sep_degree": sep,
    }
    if ep > 1:
        hybrid |= {
            "ep_degree": ep,
            "moe_sharding_degree": moe_sharding,
            "cp_degree": cp,
            "order": [
                "sharding",
                "moe_sharding",
                "pp",
                "sep",
                "dp",
                "cp",
                "ep",
                "mp",
            ],
        }
    strategy.hybrid_configs = hybrid
    for section, options in (configs or {}).items():
        for name, value in options.items():
            setattr(strategy.hybrid_configs[section], name, value)
    strategy.pipeline_configs = {
        "accumulate_steps": num_micro_batches,
        "micro_batch_size": micro_batch_size,
    }
    fleet.init(is_collective=True, strategy=strategy)
    return fleet.get_hybrid_communicate_group()


def _environment() -> dict[str, str]:
    """The environment of the launcher and, by the fork, of its ranks."""
    paths = [str(_TESTS), str(_TESTS.parent), os.environ.get("PYTHONPATH", "")]
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("PADDLE_")},
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PADDLE_DISTRI_BACKEND": "gloo",
        "OMP_NUM_THREADS": "1",
        "GLOG_minloglevel": "2",
    }


@functools.cache
def _launcher() -> subprocess.Popen[str]:
    """The process that forks the supervisors."""
    launcher = subprocess.Popen(
        [sys.executable, __file__],
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(launcher.kill)
    return launcher


def _failure(job: Path) -> str:
    """Tracebacks in the order in which ranks failed; logs of crashed ones."""
    errors = sorted(job.glob("rank*.error"), key=lambda p: p.stat().st_mtime)
    crashed = job / "crashed"
    if crashed.exists():
        log = job / f"{crashed.read_text()}.log"
        return f"{log.stem} crashed:\n{log.read_text(errors='replace')}"
    if errors:
        return "\n".join(f"{e.stem}:\n{e.read_text()}" for e in errors)
    return _logs(job)


def _logs(job: Path) -> str:
    return "\n".join(
        f"--- {log.stem}\n{log.read_text(errors='replace')[-_LOG_TAIL:]}"
        for log in sorted(job.glob("*.log"))
    )


def _wait(is_done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


def _serve() -> None:
    """Fork a supervisor for every line of the input: the path of a job."""
    import paddle  # noqa: F401  (once, before the forks)
    from paddle.distributed import fleet  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _supervise(Path(line.strip()))
        print(pid, flush=True)


def _supervise(job: Path) -> NoReturn:
    """Fork the ranks and wait for them; the first failure ends them all."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(job / "supervisor.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        status = _launch(job)
    except BaseException:
        traceback.print_exc()
    finally:
        (job / "unfinished").write_text(str(status))
        (job / "unfinished").rename(job / "status")
        os._exit(status)


def _launch(job: Path) -> int:
    from paddle_adagc.lab.gloo.rendezvous import free_port

    task = pickle.loads((job / "job.pkl").read_bytes())
    os.environ.clear()
    os.environ.update(task["environment"])
    function = _load(task["file"], task["name"])
    port = free_port()
    ranks = {}
    for rank in range(task["world_size"]):
        pid = os.fork()
        if pid == 0:
            os._exit(_run_rank(job, task, function, rank, port))
        ranks[pid] = rank
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        if os.WIFSIGNALED(status):
            (job / "crashed").write_text(f"rank{rank}")
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


def _load(file: str, name: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location("functions_of_ranks", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def _run_rank(
    job: Path,
    task: dict[str, Any],
    function: Callable[..., Any],
    rank: int,
    port: int,
) -> int:
    """The life of one rank; returns its exit status."""
    import paddle

    log = os.open(job / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        _join(rank, task["world_size"], port)
        faulthandler.dump_traceback_later(0.8 * task["timeout"])
        (job / f"rank{rank}.started").touch()
        result = function(**task["arguments"])
        (job / f"rank{rank}.pkl").write_bytes(pickle.dumps(result))
        paddle.distributed.barrier()  # others may still use a store of ours
    except BaseException:
        (job / f"rank{rank}.error").write_text(traceback.format_exc())
        return 1
    return 0


def _join(rank: int, world_size: int, port: int) -> None:
    """Enable the CPU backend and set up the default process group."""
    import paddle.distributed as dist

    from paddle_adagc.lab.gloo import enable

    os.environ |= {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_RANK_IN_NODE": str(rank),
        "PADDLE_TRAINERS_NUM": str(world_size),
        "PADDLE_MASTER": f"{_HOST}:{port}",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(
            f"{_HOST}:{port + 1 + i}" for i in range(world_size)
        ),
        "PADDLE_CURRENT_ENDPOINT": f"{_HOST}:{port + 1 + rank}",
    }
    if rank:
        _wait_for_store(port)
    enable()
    dist.init_parallel_env()


def _wait_for_store(port: int) -> None:
    """Wait until rank 0 listens: Paddle pauses 3 s after a refused attempt."""
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((_HOST, port)) == 0:
                return
        time.sleep(0.01)


if __name__ == "__main__":
    _serve()
