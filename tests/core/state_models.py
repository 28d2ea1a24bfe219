# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small model, and clips that have made steps of it."""

import numpy as np
import paddle
from helpers import clip_arrays

from paddle_adagc import ClipGradByAdaGC

KEYS = ["0.weight", "0.bias", "2.weight", "2.bias"]


def make_model():
    return paddle.nn.Sequential(
        paddle.nn.Linear(4, 6), paddle.nn.Tanh(), paddle.nn.Linear(6, 2)
    )


def fill(clip, parameters):
    rng = np.random.default_rng(clip.num_steps)
    clip_arrays(
        clip, parameters, [rng.normal(size=p.shape) for p in parameters]
    )


def bound_clip(model, steps=0):
    clip = ClipGradByAdaGC(t_start=3)
    clip.bind(model)
    for _ in range(steps):
        fill(clip, model.parameters())
    return clip
