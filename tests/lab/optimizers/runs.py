# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tests of the optimizers share: weights, gradients, runs."""

import numpy as np
import paddle
from helpers import assert_equal, make_parameters

SHAPES = [[6, 4], [3, 7], [5, 5], [6]]
"""A tall matrix, a wide one, a square one, and a vector."""


def draw_weights():
    """Start weights, float64."""
    rng = np.random.default_rng([0, 1])
    return [rng.normal(0.0, 0.5, shape) for shape in SHAPES]


def draw_gradients(step):
    """Gradients of a step, float64: noise, and now and then an outlier."""
    rng = np.random.default_rng([0, 2, step])
    gradients = [rng.normal(0.3, 1.0, shape) for shape in SHAPES]
    if step % 17 == 11:
        gradients[step % len(SHAPES)] *= 100.0
    if step % 13 == 5:
        for gradient in gradients:
            gradient.reshape(-1)[step % gradient.size] = 1000.0
    return gradients


def make_weights(dtype="float64"):
    """Parameters with the start weights."""
    parameters = make_parameters(SHAPES, dtype)
    for parameter, value in zip(parameters, draw_weights(), strict=True):
        parameter.set_value(paddle.to_tensor(value).astype(dtype))
    return parameters


def set_gradients(parameters, gradients):
    """Give parameters their gradients."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.clear_gradient()
        parameter.grad = paddle.to_tensor(gradient).astype(parameter.dtype)


def run(optimizer, parameters, steps):
    """Make the steps of these indices; the weights after them, float64."""
    for step in steps:
        set_gradients(parameters, draw_gradients(step))
        optimizer.step()
    return [p.astype("float64").numpy() for p in parameters]


def fresh(kind, dtype="float64", **arguments):
    """An optimizer and its weights, with the same names every time."""
    with paddle.utils.unique_name.guard():
        parameters = make_weights(dtype)
        return kind(0.01, parameters=parameters, **arguments), parameters


def assert_is_twin(kind, make_twin):
    """Compare 100 steps with a NumPy twin per tensor."""
    got = run(*fresh(kind), range(100))
    weights, of_tensors = draw_weights(), [make_twin(lr=0.01) for _ in SHAPES]
    for step in range(100):
        tensors = zip(of_tensors, weights, draw_gradients(step), strict=True)
        weights = [twin.step(w, g) for twin, w, g in tensors]
    assert_equal(got, weights, rtol=1e-8, atol=1e-12)
