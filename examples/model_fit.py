# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC in ``paddle.Model.fit``: recorded, and kept beside its checkpoints."""

import os

import numpy as np
import paddle

from paddle_adagc import ClipGradByAdaGC, load_state, save_state
from paddle_adagc.watch import Record


class KeepClip(paddle.callbacks.Callback):
    """Record each step; save the clip's state whenever hapi saves."""

    def __init__(self, model, folder):
        super().__init__()
        self.clip = model._optimizer._grad_clip
        self.record = Record(folder, model._optimizer, model.network)
        self.record.see_losses()
        save, load = model.save, model.load

        def save_all(path, training=True):
            save(path, training)
            if training:
                save_state(self.clip.state_dict(), f"{path}.clip")

        def load_all(path, *rest, **options):
            load(path, *rest, **options)
            if os.path.isdir(f"{path}.clip"):
                self.clip.set_state_dict(load_state(f"{path}.clip"))

        model.save, model.load = save_all, load_all

    def on_train_end(self, logs=None):
        """Write what is left."""
        self.record.close()


if __name__ == "__main__":
    paddle.seed(0)
    network = paddle.nn.Sequential(
        paddle.nn.Linear(32, 64), paddle.nn.ReLU(), paddle.nn.Linear(64, 4)
    )
    clip = ClipGradByAdaGC(t_start=8)
    clip.bind(network)
    optimizer = paddle.optimizer.AdamW(
        1e-2, parameters=network.parameters(), grad_clip=clip
    )
    model = paddle.Model(network)
    model.prepare(optimizer, paddle.nn.CrossEntropyLoss())
    rng, labels = np.random.default_rng(0), np.arange(512)[:, None] % 4
    waves = np.sin((labels + 1) * np.linspace(0, 6.28, 32))
    noisy = (waves + 0.3 * rng.normal(size=waves.shape)).astype("float32")
    rows = paddle.io.TensorDataset([noisy, labels])
    keep = KeepClip(model, "outputs/record")
    model.fit(rows, epochs=2, batch_size=32, verbose=2, callbacks=[keep])
    print(clip.summary())
    model.save("outputs/last")
    model.load("outputs/last")
