# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The same run on more or fewer GPUs."""

from __future__ import annotations

import dataclasses
import math

from paddle_adagc.checks import check_integer
from paddle_adagc.lab.train.config import (
    ParallelConfig,
    RecordConfig,
    RunConfig,
)

SIZES = tuple(2**power for power in range(3, 15))
"""8 to 16,384 GPUs."""


def with_parallel(config: RunConfig, parallel: ParallelConfig) -> RunConfig:
    """Return the run in another layout, without records and faults."""
    return dataclasses.replace(
        config,
        parallel=parallel,
        record=RecordConfig(),
        faults=[],
        train=dataclasses.replace(config.train, save_every=0),
    )


def resized(parallel: ParallelConfig, num_gpus: int) -> ParallelConfig:
    """Return the layout on another number of GPUs.

    With sharding only the sharding degree changes, without it only the
    data-parallel degree.

    Raises:
        ValueError: Less than one GPU, or no such layout has this many GPUs; the
            message names the nearest numbers.
    """
    check_integer("the number of GPUs", num_gpus, 1)
    fixed = {"tp": parallel.tp, "pp": parallel.pp}
    is_sharded = parallel.sharding > 1
    if is_sharded:
        fixed |= {"dp": parallel.dp}
    if parallel.ep > 1:  # a multiple of tp
        fixed |= {"tp": 1, "ep": parallel.ep}
    unit = math.prod(fixed.values())
    if num_gpus < unit or num_gpus % unit:
        below = num_gpus // unit * unit
        near = [f"{n:,}" for n in (below, below + unit) if n]
        names = " x ".join(f"{k} {v}" for k, v in fixed.items() if v > 1)
        raise ValueError(
            f"{num_gpus:,} GPUs are not a multiple of {names} = {unit}: "
            f"use {' or '.join(near)}"
        )
    degree = num_gpus // (parallel.tp * parallel.pp)
    if is_sharded:
        return dataclasses.replace(parallel, sharding=degree // parallel.dp)
    return dataclasses.replace(parallel, dp=degree)
