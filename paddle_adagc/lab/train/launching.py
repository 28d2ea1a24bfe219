# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
