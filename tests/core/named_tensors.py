# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip that knows a few tensors by name, and their gradients."""

import numpy as np
from helpers import make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.layout import TensorLayout

SIZES = {"embed.weight": 9, "0.router.weight": 6, "0.mlp.weight": 7, "norm": 5}


def bound_clip(keys=SIZES, **arguments):
    """A clip for one-dimensional tensors of these keys, and the tensors."""
    clip = ClipGradByAdaGC(**arguments)
    parameters = make_parameters([[SIZES[key]] for key in keys])
    clip._tensors.bind(
        {
            parameter.name: TensorLayout(
                key=key,
                shape=(SIZES[key],),
                is_tp_split=key.endswith("mlp.weight"),
            )
            for key, parameter in zip(keys, parameters, strict=True)
        }
    )
    return clip, parameters


def gradients(step, keys=SIZES):
    rng = np.random.default_rng(step)
    every = {
        key: rng.normal(size=size).astype("float32")
        for key, size in SIZES.items()
    }
    every[[*SIZES][step % len(SIZES)]] *= 20 if step % 3 == 2 else 1
    return [every[key] for key in keys]
