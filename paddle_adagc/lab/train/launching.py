# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command that starts the processes of a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

GPUS_PER_NODE = 8


def launch_lines(run: Sequence[str], num_processes: int) -> list[str]:
    """Return the command that starts a run, after a line on where to run it.

    Args:
        run: Python file and its arguments.
        num_processes: Number of processes, one per GPU.
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
