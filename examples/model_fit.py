# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC in Paddle's high-level API, ``paddle.Model.fit``."""

import numpy as np
import paddle

from paddle_adagc import ClipGradByAdaGC


class Waves(paddle.io.Dataset):
    """Noisy waves of four frequencies; the label is the frequency."""

    def __len__(self):
        """Number of samples."""
        return 512

    def __getitem__(self, index):
        """float32 ``[32]`` and int64 ``[1]``."""
        rng = np.random.default_rng(index)
        label = index % 4
        wave = np.sin((label + 1) * np.linspace(0, 6.28, 32))
        noisy = wave + 0.3 * rng.normal(size=32)
        return noisy.astype("float32"), np.array([label], "int64")


if __name__ == "__main__":
    paddle.seed(0)
    network = paddle.nn.Sequential(
        paddle.nn.Linear(32, 64), paddle.nn.ReLU(), paddle.nn.Linear(64, 4)
    )
    clip = ClipGradByAdaGC(t_start=8)
    clip.bind(network)
    model = paddle.Model(network)
    model.prepare(
        paddle.optimizer.AdamW(
            1e-2, parameters=network.parameters(), grad_clip=clip
        ),
        paddle.nn.CrossEntropyLoss(),
        paddle.metric.Accuracy(),
    )
    model.fit(Waves(), epochs=2, batch_size=32, verbose=2, log_freq=8)
    print(clip.summary())
