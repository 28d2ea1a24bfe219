# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC under fleet: tensor parallelism over two ranks.

    PYTHONPATH=tools python -m paddle.distributed.launch --nproc_per_node 2 \\
        examples/fleet_hybrid.py

On a machine without GPUs ``enable()`` lets fleet run on CPU processes; it lies
in ``tools/`` of a clone.
"""

import numpy as np
import paddle
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
)

from paddle_adagc import ClipGradByAdaGC

if not paddle.is_compiled_with_cuda():
    from adagc_lab.gloo import enable

    enable()


class MLP(paddle.nn.Layer):
    """Each rank holds half of the hidden units."""

    def __init__(self):
        super().__init__()
        self.up = ColumnParallelLinear(16, 64, gather_output=False)
        self.down = RowParallelLinear(64, 1, input_is_parallel=True)

    def forward(self, x):
        """``[batch, 16]`` to ``[batch, 1]``."""
        return self.down(paddle.nn.functional.gelu(self.up(x)))


if __name__ == "__main__":
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 2, "pp_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    model = MLP()
    clip = ClipGradByAdaGC(t_start=10, init="warmup_ema")
    clip.bind(model)  # before fleet wraps anything
    optimizer = paddle.optimizer.AdamW(
        3e-3, parameters=model.parameters(), grad_clip=clip
    )
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(optimizer)
    for step in range(40):
        x = np.random.default_rng(step).normal(size=[32, 16])
        x = paddle.to_tensor(x.astype("float32"))
        loss = paddle.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    summary = clip.summary()  # every rank calls it, and gets the same
    if fleet.worker_index() == 0:
        print(f"loss {float(loss):.3g}", summary)
