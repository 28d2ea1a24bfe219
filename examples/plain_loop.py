# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training loop with AdaGC that stops, resumes, and survives an outlier."""

import numpy as np
import paddle

from paddle_adagc import ClipGradByAdaGC, load_state, save_state

DIRECTORY = "outputs/plain_loop"


def batch(step):
    """Inputs and targets of a step; those of step 60 are an outlier."""
    x = np.random.default_rng(step).normal(size=[32, 8]).astype("float32")
    y = np.sin(x).sum(1, keepdims=True) * np.float32(1e4 if step == 60 else 1)
    return paddle.to_tensor(x), paddle.to_tensor(y)


def make():
    """Model, clip and optimizer."""
    model = paddle.nn.Sequential(
        paddle.nn.Linear(8, 64), paddle.nn.GELU(), paddle.nn.Linear(64, 1)
    )
    clip = ClipGradByAdaGC(t_start=20)
    clip.bind(model)
    optimizer = paddle.optimizer.AdamW(
        3e-3, parameters=model.parameters(), grad_clip=clip
    )
    return model, clip, optimizer


def train(model, clip, optimizer, start, stop):
    """Some steps; prints what the clip did."""
    for step in range(start, stop):
        x, y = batch(step)
        loss = paddle.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        if step % 20 == 0:
            summary = clip.summary()
            print(
                f"step {step}  loss {float(loss):.3g}  "
                f"|g| {summary['global_grad_norm']:.3g}  "
                f"clipped {summary['clipped_fraction']:.0%}  "
                f"h_min {summary['h_min']:.2g}"
            )


if __name__ == "__main__":
    paddle.seed(0)
    print(
        "step 60 is an outlier on purpose: its targets are 10,000 times larger"
    )
    model, clip, optimizer = make()
    train(model, clip, optimizer, 0, 50)
    save_state(clip.state_dict(), DIRECTORY)
    paddle.save(model.state_dict(), f"{DIRECTORY}/model.pdparams")
    paddle.save(optimizer.state_dict(), f"{DIRECTORY}/model.pdopt")

    with paddle.utils.unique_name.guard():  # the names of a new process
        model, clip, optimizer = make()
        model.set_state_dict(paddle.load(f"{DIRECTORY}/model.pdparams"))
        optimizer.set_state_dict(paddle.load(f"{DIRECTORY}/model.pdopt"))
        clip.set_state_dict(load_state(DIRECTORY))
        train(model, clip, optimizer, 50, 101)
