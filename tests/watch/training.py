# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small training that is recorded; as a program, one that is killed."""

import sys
from pathlib import Path

import numpy as np
import paddle

from paddle_adagc import ClipGradByAdaGC, load_state, save_state
from paddle_adagc.watch import Record

WIDTH, RING = 16, 64


def make_training(clip, seed=1):
    """Model and optimizer; the data comes from :func:`train`."""
    paddle.seed(seed)
    model = paddle.nn.Sequential(
        *[paddle.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    )
    optimizer = paddle.optimizer.AdamW(
        1e-3, parameters=model.parameters(), grad_clip=clip
    )
    return model, optimizer


def train(
    model, optimizer, steps, *, record=None, seed=1, change=None, after=None
):
    """Make steps; ``change(step, loss)`` may change a loss or a gradient."""
    for step in steps:
        rng = np.random.default_rng([seed, step])
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


def main(folder, num_steps, save_steps):
    """Train, resumed from the newest checkpoint of ``folder``."""
    folder = Path(folder)
    model, optimizer = make_training(ClipGradByAdaGC())
    clip = optimizer._grad_clip
    clip.bind(model)
    saved = sorted(folder.glob("step-*/model.pdparams"))
    start = int(saved[-1].parent.name[5:]) if saved else 0
    if saved:
        model.set_state_dict(paddle.load(str(saved[-1])))
        clip.set_state_dict(load_state(saved[-1].parent))
    record = Record(
        folder / "record", optimizer, start=start or None, num_steps=16
    )
    for begin in range(start, num_steps, save_steps):
        train(model, optimizer, range(begin, begin + save_steps), record=record)
        record.flush()
        target = folder / f"step-{begin + save_steps:06d}"
        save_state(clip.state_dict(), target)
        paddle.save(model.state_dict(), str(target / "new.pdparams"))
        (target / "new.pdparams").rename(target / "model.pdparams")
        print(begin + save_steps, flush=True)
    record.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
