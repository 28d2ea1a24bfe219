# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training whose steps 221 and 222 have wrong labels, for adagc-run.

It knows nothing of this package: ``adagc-run --watch`` records it.
"""

import numpy as np
import paddle

paddle.seed(1)
net = paddle.nn.Sequential(*[paddle.nn.Linear(16, 16) for _ in range(3)])
x = np.random.default_rng(0).normal(size=[300, 64, 16]).astype("float32")
y = x[..., ::-1].copy()
y[220:222] *= 8
optimizer = paddle.optimizer.AdamW(
    1e-3,
    parameters=net.parameters(),
    grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
)
for a, b in zip(x, y, strict=True):
    for rows in (slice(32), slice(32, 64)):  # two micro-batches a step
        found = net(paddle.to_tensor(a[rows]))
        loss = (found - paddle.to_tensor(b[rows])).square().mean() / 2
        loss.backward()
    optimizer.step()
    optimizer.clear_grad()
