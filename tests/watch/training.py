# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small training that is recorded."""

import numpy as np
import paddle

from paddle_adagc import ClipGradByAdaGC

WIDTH = 16
CLIPS = {
    "global norm": lambda: paddle.nn.ClipGradByGlobalNorm(0.1),
    "norm": lambda: paddle.nn.ClipGradByNorm(0.02),
    "value": lambda: paddle.nn.ClipGradByValue(0.01),
    "none": lambda: None,
    "ours": lambda: ClipGradByAdaGC(t_start=20),
}


def make_training(clip):
    """Model and optimizer; the data comes from :func:`train`."""
    paddle.seed(1)
    model = paddle.nn.Sequential(
        *[paddle.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    )
    optimizer = paddle.optimizer.AdamW(
        1e-3, parameters=model.parameters(), grad_clip=clip
    )
    return model, optimizer


def in_groups(*clips):
    """The same, whose parameter groups have these clips."""
    model, _ = make_training(None)
    parameters, size = model.parameters(), 8 // len(clips)
    groups = [
        {"params": parameters[i * size :][:size], "grad_clip": clip}
        for i, clip in enumerate(clips)
    ]
    return model, paddle.optimizer.AdamW(1e-3, parameters=groups)


def train(model, optimizer, steps, *, record=None, change=None, after=None):
    """Make steps; ``change(step, loss)`` may change a loss or a gradient."""
    for step in steps:
        rng = np.random.default_rng([1, step])
        x = paddle.to_tensor(rng.normal(size=(256, WIDTH)).astype("float32"))
        loss = (model(x) - x.flip(1)).square().mean()
        if change is not None:
            loss = change(step, loss)
        loss.backward()
        if after is not None:
            after(step, model)
        optimizer.step()
        optimizer.clear_grad()
        if record is not None:
            record.step(loss)
    return [parameter.numpy() for parameter in model.parameters()]
