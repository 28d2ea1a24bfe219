# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Start weights and gradients of the optimizers' tests."""

import numpy as np

SHAPES = [[6, 4], [3, 7], [5, 5], [6]]
"""A tall matrix, a wide one, a square one, and a vector."""


def draw_weights(seed=0):
    """Start weights, float64."""
    rng = np.random.default_rng([seed, 1])
    return [rng.normal(0.0, 0.5, shape) for shape in SHAPES]


def draw_gradients(step, seed=0):
    """Gradients of a step, float64: noise, and now and then an outlier."""
    rng = np.random.default_rng([seed, 2, step])
    gradients = [rng.normal(0.3, 1.0, shape) for shape in SHAPES]
    if step % 17 == 11:
        gradients[step % len(SHAPES)] *= 100.0
    if step % 13 == 5:
        for gradient in gradients:
            gradient.reshape(-1)[step % gradient.size] = 1000.0
    return gradients
