# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sharding stages 2 and 3 on CPUs, which `group_sharded_parallel` refuses."""

from typing import Any
from unittest import mock

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.base import core
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2,
    group_sharded_stage2,
    group_sharded_stage3,
)


def group_sharded_on_cpu(
    model: nn.Layer, optimizer: Any, stage: int, segment_size: int
) -> tuple[nn.Layer, Any]:
    """Do what `group_sharded_parallel` does, with the same classes.

    Stage 3 leaves tensors of up to ``segment_size`` values whole.
    """
    place = {"group": dist.get_group(), "device": "cpu"}
    with (
        mock.patch.object(core, "is_compiled_with_cuda", return_value=True),
        mock.patch.object(paddle, "get_device", return_value="cpu:0"),
    ):
        if stage == 3:
            model = group_sharded_stage3.GroupShardedStage3(
                model, optimizer, segment_size=segment_size, **place
            )
            return model, optimizer
        optimizer = group_sharded_optimizer_stage2.GroupShardedOptimizerStage2(
            model.parameters(), optimizer, **place
        )
        model = group_sharded_stage2.GroupShardedStage2(
            model, optimizer, **place
        )
        return model, optimizer
