# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tests of the optimizers share: runs on the CPU."""

import paddle
from core.optimizers.draws import SHAPES, draw_gradients, draw_weights
from helpers import make_parameters


def make_weights(dtype="float64"):
    """Parameters with the start weights."""
    parameters = make_parameters(SHAPES, dtype)
    for parameter, value in zip(parameters, draw_weights(), strict=True):
        parameter.set_value(paddle.to_tensor(value).astype(dtype))
    return parameters


def set_gradients(parameters, gradients, dtype=None):
    """Give parameters their gradients."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        values = paddle.to_tensor(gradient).astype(dtype or parameter.dtype)
        parameter.clear_gradient()
        parameter.grad = values


def run(optimizer, parameters, steps):
    """Make the steps of these indices; the weights after them, float64."""
    for step in steps:
        set_gradients(parameters, draw_gradients(step))
        optimizer.step()
    return values(parameters)


def values(parameters):
    """Weights as float64 arrays."""
    return [p.astype("float64").numpy() for p in parameters]


def run_twins(twins, steps):
    """The same with one twin per tensor; all weights after every step."""
    weights = draw_weights()
    for step in steps:
        weights = [
            twin.step(w, g)
            for twin, w, g in zip(
                twins, weights, draw_gradients(step), strict=True
            )
        ]
    return weights
