# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time of a hybrid-parallel clip step between hosts with a network delay.

Run as a file, this is one rank:

    python -m paddle_adagc.lab.benchmark.hosts_clip RESULT LAYOUT CLIP

with LAYOUT such as '{"sharding": 2}'.

It trains a small model for some steps and writes the times of its clip, in
seconds, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.layers.mpu import (
    ColumnParallelLinear,
    RowParallelLinear,
)

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.files import atomic_write_json
from paddle_adagc.integrations.trainer import innermost
from paddle_adagc.lab.benchmark.network import (
    INTERFACE,
    address,
    command_on,
    network,
)
from paddle_adagc.lab.gloo import enable
from paddle_adagc.lab.gloo.rendezvous import free_port
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.report.formatting import format_quartiles

DELAYS_MS = (0.0, 0.1, 1.0)
LAYOUTS: dict[str, dict[str, int]] = {
    "sharding V1 x2": {"sharding": 2},
    "sharding V1 x4": {"sharding": 4},
    "sharding V1 x8": {"sharding": 8},
    "TP x2": {"mp": 2},
}
"""Degrees of fleet, by name."""

CLIPS = ("GlobalGC", "AdaGC")
_NUM_LAYERS = 8
_WIDTH = 64
_WARM_UP = 3
_NUM_STEPS = 33
_WORK_SECONDS = 2e-3
_TIMEOUT_SECONDS = 300


def measure(
    layouts: Sequence[str], delays_ms: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """Time every clip under every layout and delay.

    Yields:
        ``layout``, ``delay_ms``, ``clip``, and ``ms``: the slowest rank's
        time of every adaptive step.

    Raises:
        RuntimeError: A rank failed.
    """
    for layout in layouts:
        num_ranks = LAYOUTS[layout].get("mp", 1) * LAYOUTS[layout].get(
            "sharding", 1
        )
        for delay_ms in delays_ms:
            for clip in CLIPS:
                with network(num_ranks, delay_ms / 1e3):
                    times = _run_ranks(num_ranks, LAYOUTS[layout], clip)
                slowest = [max(step) * 1e3 for step in zip(*times, strict=True)]
                yield {
                    "layout": layout,
                    "delay_ms": delay_ms,
                    "clip": clip,
                    "ms": slowest,
                }


def to_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Pipe table: a line per layout and clip, a column per delay."""
    delays = sorted({row["delay_ms"] for row in rows})
    cells = {
        (row["layout"], row["clip"], row["delay_ms"]): format_quartiles(
            row["ms"], ".2f"
        )
        for row in rows
    }
    return markdown_table(
        ["layout", "clip", *(f"delay {delay:g} ms" for delay in delays)],
        [
            (*pair, *(cells.get((*pair, delay), "") for delay in delays))
            for pair in dict.fromkeys((r["layout"], r["clip"]) for r in rows)
        ],
        left=2,
    )


def _run_ranks(
    num_ranks: int, degrees: Mapping[str, int], clip: str
) -> list[list[float]]:
    """Every rank's times, each rank on a host of its own."""
    port = free_port()
    endpoints = [f"{address(rank)}:{port + 1}" for rank in range(num_ranks)]
    with tempfile.TemporaryDirectory() as scratch:
        ranks = []
        for rank in range(num_ranks):
            result = Path(scratch) / f"{rank}.json"
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PADDLE_DISTRI_BACKEND": "gloo",
                "GLOO_SOCKET_IFNAME": INTERFACE,
                "PADDLE_TRAINER_ID": str(rank),
                "PADDLE_TRAINERS_NUM": str(num_ranks),
                "PADDLE_MASTER": f"{address(0)}:{port}",
                "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
                "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
            }
            arguments = [str(result), json.dumps(dict(degrees)), clip]
            ranks.append(
                subprocess.Popen(
                    command_on(rank, [sys.executable, __file__, *arguments]),
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=(Path(scratch) / f"{rank}.log").open("wb"),
                )
            )
        return [
            _result(Path(scratch), rank, process)
            for rank, process in enumerate(ranks)
        ]


def _result(
    scratch: Path, rank: int, process: subprocess.Popen[bytes]
) -> list[float]:
    try:
        process.wait(_TIMEOUT_SECONDS)
    finally:
        process.kill()
    result = scratch / f"{rank}.json"
    if not result.exists():
        log = (scratch / f"{rank}.log").read_text(errors="replace")
        raise RuntimeError(f"rank {rank} failed:\n{log[-2000:]}")
    return json.loads(result.read_text())


class _Net(paddle.nn.Layer):
    """Linear layers, alternately split over their outputs and inputs."""

    def __init__(self, is_split: bool) -> None:
        super().__init__()
        self.layers = paddle.nn.LayerList()
        for index in range(_NUM_LAYERS):
            if not is_split:
                layer = paddle.nn.Linear(_WIDTH, _WIDTH)
            elif index % 2 == 0:
                layer = ColumnParallelLinear(
                    _WIDTH, _WIDTH, has_bias=True, gather_output=False
                )
            else:
                layer = RowParallelLinear(
                    _WIDTH, _WIDTH, has_bias=True, input_is_parallel=True
                )
            self.layers.append(layer)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        for layer in self.layers:
            x = paddle.tanh(layer(x))
        return x.square().mean()


def _train(degrees: Mapping[str, int], clip_name: str) -> list[float]:
    """Seconds of every adaptive clip step on this rank."""
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {
        "dp_degree": 1,
        "mp_degree": degrees.get("mp", 1),
        "pp_degree": 1,
        "sharding_degree": degrees.get("sharding", 1),
    }
    fleet.init(is_collective=True, strategy=strategy)
    model = _Net("mp" in degrees)
    clip: Any = paddle.nn.ClipGradByGlobalNorm(1e-3)
    if clip_name == "AdaGC":
        clip = ClipGradByAdaGC(t_start=_WARM_UP)
        clip.bind(model)
    optimizer = paddle.optimizer.AdamW(
        1e-4, parameters=model.parameters(), grad_clip=clip
    )
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(optimizer)
    timed = _watch(optimizer)
    for _ in range(_WARM_UP + _NUM_STEPS):
        model(paddle.randn([4, _WIDTH])).backward()
        optimizer.step()
        optimizer.clear_grad()
    return timed[_WARM_UP:]


def _watch(optimizer: Any) -> list[float]:
    """Time the clip that the innermost optimizer calls.

    All ranks start each clip step together, so that none waits in it for
    what others did before, and out of a moment's work, as after a backward
    pass: a core that slept in the barrier is slow at first.
    """
    matrix = paddle.randn([_WIDTH, _WIDTH])
    optimizer = innermost(optimizer)
    inner, times = optimizer._grad_clip, []

    def timed(params_grads: Any) -> Any:
        dist.barrier()
        begin = time.perf_counter()
        while time.perf_counter() < begin + _WORK_SECONDS:
            matrix.matmul(matrix)
        begin = time.perf_counter()
        clipped = inner(params_grads)
        times.append(time.perf_counter() - begin)
        return clipped

    optimizer._grad_clip = timed
    return times


def main() -> None:
    """One rank."""
    result, degrees, clip = sys.argv[1:]
    enable()
    times = _train(json.loads(degrees), clip)
    dist.barrier()
    atomic_write_json(result, times)


if __name__ == "__main__":
    main()
    os._exit(0)
