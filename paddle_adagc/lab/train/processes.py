# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: fleet's start, and what only one of them does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet

from paddle_adagc.lab.gloo import enable
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.launching import launch_lines

T = TypeVar("T")
_ORDER = ["sharding", "pp", "sep", "dp", "mp"]
_ORDER_WITH_EXPERTS = [
    "sharding",
    "moe_sharding",
    "pp",
    "sep",
    "dp",
    "ep",
    "mp",
]


def start_processes(config: RunConfig) -> None:
    """Start fleet as ``config.parallel`` says; nothing for one process.

    PaddleNLP starts fleet if nobody has, without groups for experts; it
    keeps a topology that exists.

    Raises:
        ValueError: Another number of processes was launched.
    """
    parallel, num_launched = config.parallel, dist.get_world_size()
    if num_launched != parallel.num_processes:
        lines = launch_lines(sys.argv, parallel.num_processes)
        raise ValueError(
            f"parallel asks for {parallel.num_processes} processes, not "
            f"{num_launched}; launch it like this: {' '.join(lines)}"
        )
    if num_launched == 1:
        return
    if not paddle.is_compiled_with_cuda():
        enable()
    strategy = fleet.DistributedStrategy()
    hybrid: dict[str, Any] = {
        "dp_degree": parallel.dp,
        "mp_degree": parallel.tp,
        "pp_degree": parallel.pp,
        "sharding_degree": parallel.sharding,
        "order": _ORDER,
    }
    if parallel.ep > 1:
        hybrid |= {
            "ep_degree": parallel.ep,
            "moe_sharding_degree": parallel.moe_sharding,
            "order": _ORDER_WITH_EXPERTS,
        }
    strategy.hybrid_configs = hybrid
    sharding = strategy.hybrid_configs["sharding_configs"]
    sharding.split_param = parallel.sharding > 1 and (
        parallel.sharding_split_param
    )
    strategy.pipeline_configs = {
        "accumulate_steps": config.train.gradient_accumulation_steps,
        "micro_batch_size": config.train.batch_size,
        "enable_partial_send_recv": not parallel.sequence_parallel,
    }
    strategy.find_unused_parameters = True
    fleet.init(is_collective=True, strategy=strategy, log_level="WARNING")


def is_first_process() -> bool:
    """Tell whether this process writes the record and the logs."""
    return dist.get_rank() == 0


def wait_for_all() -> None:
    """Wait until every process is here."""
    if dist.get_world_size() > 1:
        dist.barrier()


def leave(code: int) -> NoReturn:
    """End this process with an exit status, together with the others.

    Over gloo it skips the interpreter's teardown: the rank that owns a group's
    store must not end first, and gloo's threads abort some ranks that end last.
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        if code in (0, 1, 130, 143):  # else the others may not be here
            dist.barrier()
        if not paddle.is_compiled_with_cuda():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


def from_first_process(function: Callable[[], T]) -> T:
    """Call a function in the first process; return its result in every one.

    Raises:
        Exception: The function's exception, on every process.
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


def gather_names(names: Iterable[str]) -> list[str]:
    """Return the sorted names of all processes; every process calls this."""
    mine = sorted(names)
    if dist.get_world_size() == 1:
        return mine
    parts: list[list[str]] = []
    dist.all_gather_object(parts, mine)
    return sorted({name for part in parts for name in part})


def mean_over_processes(values: Sequence[float | None]) -> list[float]:
    """Average each value over the processes that know it.

    Args:
        values: This process's values; None for a value that only other
            processes know (a loss, on all pipeline stages but the last).
    """
    known = [value for value in values if value is not None]
    if dist.get_world_size() == 1 or not values:
        return known
    table = paddle.to_tensor(
        [
            [value or 0.0 for value in values],
            [float(value is not None) for value in values],
        ],
        "float64",
    )
    dist.all_reduce(table)
    total, count = table.numpy()
    return (total / count).tolist()
