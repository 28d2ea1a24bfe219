# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Switch a running job from GlobalGC to AdaGC: load everything but the clip.

The first process clips by the global norm. The second one loads its model and
optimizer, and starts a fresh clip, which begins with its own warm-up.
"""

import numpy as np
import paddle

from paddle_adagc import ClipGradByAdaGC

DIRECTORY = "outputs/switch_run"


def make(clip):
    """Model and optimizer."""
    model = paddle.nn.Sequential(
        paddle.nn.Linear(8, 32), paddle.nn.Tanh(), paddle.nn.Linear(32, 1)
    )
    optimizer = paddle.optimizer.AdamW(
        3e-3, parameters=model.parameters(), grad_clip=clip
    )
    return model, optimizer


def train(model, optimizer, steps):
    """Train; returns the last loss."""
    for step in steps:
        x = np.random.default_rng(step).normal(size=[32, 8]).astype("float32")
        x = paddle.to_tensor(x)
        loss = paddle.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    return float(loss)


if __name__ == "__main__":
    with paddle.utils.unique_name.guard():
        model, optimizer = make(paddle.nn.ClipGradByGlobalNorm(1.0))
        print("GlobalGC, step 99: loss", train(model, optimizer, range(100)))
        paddle.save(model.state_dict(), f"{DIRECTORY}/model.pdparams")
        paddle.save(optimizer.state_dict(), f"{DIRECTORY}/model.pdopt")

    with paddle.utils.unique_name.guard():  # the names of a new process
        clip = ClipGradByAdaGC(t_start=20)
        model, optimizer = make(clip)
        clip.bind(model)
        model.set_state_dict(paddle.load(f"{DIRECTORY}/model.pdparams"))
        optimizer.set_state_dict(paddle.load(f"{DIRECTORY}/model.pdopt"))
        print("AdaGC, step 199: loss", train(model, optimizer, range(100, 200)))
        print(clip.summary())
