# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Balance of ERNIE's experts in PaddleFormers' ``ernie_pretrain``.

PaddleFormers 1.2.0 counts the tokens of every expert, and then leaves the
routers' correction biases as they are.
"""

from __future__ import annotations

from typing import Any

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddleformers.cli.train.ernie_pretrain.models.moe.moe_layer import MOELayer
from paddleformers.trainer.trainer_callback import TrainerCallback


class CorrectionBiasCallback(TrainerCallback):
    """Balance the experts without a loss, as ERNIE-4.5 does.

    After every optimizer step a correction bias goes up by ``rate`` if its
    expert got fewer tokens than the average, and down if it got more, counted
    over all ranks that read different data. Under sequence parallelism also
    tensor-parallel ranks route different tokens.
    """

    def __init__(self, rate: float, sequence_parallel: Any) -> None:
        super().__init__()
        self.rate = float(rate)
        self.sequence_parallel = bool(sequence_parallel)

    @paddle.no_grad()
    def on_optimizer_end(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Update the biases of this rank's layers and count anew."""
        routers = [
            layer.moe_statics
            for layer in kwargs["model"].sublayers(include_self=True)
            if isinstance(layer, MOELayer)
        ]
        if not routers:
            return
        tokens = paddle.stack([router.expert_usage for router in routers])
        hcg = fleet.get_hybrid_communicate_group()
        groups = [
            hcg.get_data_parallel_group(),
            hcg.get_sharding_parallel_group(),
        ]
        if self.sequence_parallel:
            groups.append(hcg.get_model_parallel_group())
        for group in groups:
            if group.nranks > 1:
                dist.all_reduce(tokens, group=group)
        load = tokens.astype("float32")
        lack = paddle.sign(load.mean(axis=-1, keepdim=True) - load)
        for router, step in zip(routers, lack * self.rate, strict=True):
            router.e_score_correction_bias.add_(step)
            router.expert_usage.zero_()
