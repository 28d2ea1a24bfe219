# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: how they start, what one does, how they stop."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from typing_extensions import Self

from adagc_lab.gloo import enable
from adagc_lab.train.config import ParallelConfig

T = TypeVar("T")
GPUS_PER_NODE = 8
_ORDER = ["sharding", "pp", "sep", "dp", "mp"]
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_ECHO_SECONDS = 2.0
"""A signal that follows sooner is no second request: Paddle's launcher sends
three SIGTERM, 0.2 s apart, and a terminal's Ctrl-C reaches it and the ranks."""


def launch_lines(run: Sequence[str], num_processes: int) -> list[str]:
    """Return the command that starts a Python file with its arguments.

    With several nodes a line before says where to run it.
    """
    command = shlex.join(run)
    if num_processes == 1:
        return [f"python {command}"]
    launch = "python -m paddle.distributed.launch"
    num_nodes, rest = divmod(num_processes, GPUS_PER_NODE)
    if num_nodes <= 1 or rest:
        return [f"{launch} --nproc_per_node {num_processes} {command}"]
    return [
        f"on each of {num_nodes} nodes of {GPUS_PER_NODE} GPUs; ADDRESS:PORT "
        "is a free port of one of them:",
        f"{launch} --master ADDRESS:PORT --nnodes {num_nodes} "
        f"--nproc_per_node {GPUS_PER_NODE} {command}",
    ]


def start_processes(parallel: ParallelConfig) -> None:
    """Start fleet as ``parallel`` says; nothing for one process."""
    refuse_untrained(parallel)
    num_launched = dist.get_world_size()
    if num_launched != parallel.num_processes:
        lines = launch_lines(sys.argv, parallel.num_processes)
        raise ValueError(
            f"parallel asks for {parallel.num_processes} processes, not "
            f"{num_launched}: change its degrees, or launch it like this: "
            f"{' '.join(lines)}"
        )
    if num_launched == 1:
        return
    if not paddle.is_compiled_with_cuda():
        enable()
    is_split = parallel.sharding > 1 and parallel.sharding_split_param
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {
        "dp_degree": parallel.dp,
        "mp_degree": parallel.tp,
        "sharding_degree": parallel.sharding,
        "order": _ORDER,
    }
    strategy.hybrid_configs["sharding_configs"].split_param = is_split
    strategy.find_unused_parameters = True
    fleet.init(is_collective=True, strategy=strategy, log_level="WARNING")


def refuse_untrained(parallel: ParallelConfig) -> None:
    """Refuse what PaddleFormers' trainers alone can do."""
    for name in ("pp", "ep"):
        if getattr(parallel, name) > 1:
            raise ValueError(
                f"parallel.{name}={getattr(parallel, name)}: this trainer has "
                "dp, tp and sharding; PaddleFormers' has pipelines and expert "
                "parallelism, see docs/limitations.md"
            )


def is_first_process() -> bool:
    """Tell whether this process writes the record and the logs."""
    return dist.get_rank() == 0


def leave(code: int) -> NoReturn:
    """End this process with an exit status, together with the others.

    Over gloo it skips the interpreter's teardown: the rank that owns a group's
    store must not end first, and gloo's threads abort some ranks that end last.
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        if code in (0, 1) or code > 128:  # else the others may not be here
            dist.barrier()
        if not paddle.is_compiled_with_cuda():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


def from_first_process(function: Callable[[], T]) -> T:
    """Call a function in the first process; return its result in every one.

    Its exception, too, is raised in every process.
    """
    if dist.get_world_size() == 1:
        return function()
    outcome: list[Any] = [None, None]
    if is_first_process():
        try:
            outcome = [function(), None]
        except Exception as error:
            outcome = [None, error]
    dist.broadcast_object_list(outcome, src=0)
    result, failure = outcome
    if failure is not None:
        raise failure
    return result


def mean_over_processes(values: Sequence[float]) -> list[float]:
    """Average each value over the processes."""
    if dist.get_world_size() == 1 or not values:
        return [*values]
    table = paddle.to_tensor([*values], "float64")
    dist.all_reduce(table)
    return (table / dist.get_world_size()).tolist()


class Stopped(SystemExit):
    """A signal ended the run, after a checkpoint; the same command resumes it.

    Its ``exit_status`` is 128 and the signal's number: 130 after SIGINT.
    """

    def __init__(self, number: int, checkpoint: Path) -> None:
        self.exit_status = 128 + number
        super().__init__(self.exit_status)
        self._line = f"stopped by {signal.Signals(number).name}: saved "
        self._line += f"{checkpoint}; the same command (without --overwrite) "

    def __str__(self) -> str:
        return f"{self._line}resumes"


class StopRequest:
    """Take note of signals that ask to end; a second one exits.

    All ranks stop after the same step, whichever got the signal. Over gloo they
    exchange their notes after every step. On GPUs an exchange makes the host
    wait for the device: it is done where losses are exchanged anyway, every
    ``log_every`` steps.
    """

    def __init__(self, log_every: int) -> None:
        self._every = log_every if paddle.is_compiled_with_cuda() else 1
        self._number, self._time = 0, 0.0
        self._process, self._is_ending = os.getpid(), False
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers; outside of the main thread do nothing."""
        with contextlib.suppress(ValueError):  # not the main thread
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if number != signal.SIGHUP or handler is not signal.SIG_IGN:
                    self._earlier[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        """Put the earlier handlers back, unless the process is to end.

        The launcher's signal may reach some ranks when the others have agreed.
        """
        if not self._is_ending:
            for number, handler in self._earlier.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a data loader's
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        now = time.monotonic()
        if self._number and now - self._time > _ECHO_SECONDS:
            os._exit(128 + number)
        if not self._number:
            self._number, self._time = number, now

    def agreed(self, step: int) -> int:
        """Return the signal that ends the run after ``step`` steps; 0: none.

        All ranks call this and get the same.
        """
        number = self._number
        if dist.get_world_size() > 1:
            if step % self._every:
                return 0
            note = paddle.to_tensor([number], "int32")
            dist.all_reduce(note, op=dist.ReduceOp.MAX)
            number = int(note)
        self._is_ending = number != 0
        return number
