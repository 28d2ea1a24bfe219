# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tensors of the paper's models, at widths that fit this machine."""

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import Tensor

from paddle_adagc.lab.models.families import preset
from paddle_adagc.lab.models.shapes import Shape, parameter_shapes

_ERNIE: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "hidden_size": 256,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
LISTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ernie-10b-a1.4b": ("ernie-10b-a1.4b", _ERNIE),
    "llama2-1.3b": (
        "llama2-1.3b",
        {"hidden_size": 1024, "intermediate_size": 2048, "vocab_size": 1000},
    ),
    "llama2-7b": (
        "llama2-7b",
        {"hidden_size": 768, "intermediate_size": 2048, "vocab_size": 1000},
    ),
    "qwen3-1.7b": (
        "qwen3-1.7b",
        {"hidden_size": 512, "intermediate_size": 1536, "vocab_size": 1000},
    ),
    "mixtral-8x1b": (
        "mixtral-8x1b",
        {"hidden_size": 256, "intermediate_size": 704, "vocab_size": 1000},
    ),
}
"""Preset and smaller widths; layers and experts, and so the number of tensors,
are the full model's."""


def recipe_shapes(name: str) -> list[Shape]:
    """Shapes of a list of :data:`LISTS`, without the routers.

    As the paper counts tensors: ERNIE's list has 3,828.
    """
    model, widths = LISTS[name]
    shapes = parameter_shapes(preset(model, **widths))
    return [
        shape
        for key, shape in shapes.items()
        if not key.endswith("mlp.gate.weight")
    ]


def equal_shapes(num_tensors: int, num_values: int) -> list[Shape]:
    """As many square tensors of about the same number of values in all."""
    side = max(1, round(math.sqrt(num_values / num_tensors)))
    return [(side, side)] * num_tensors


def make_pairs(
    shapes: list[Shape], dtype: str = "float32"
) -> list[tuple[Tensor, Tensor]]:
    """Parameters and random gradients of these shapes.

    Parameters are small: no clip but AGC looks at their values.

    Args:
        shapes: Of the gradients.
        dtype: Of the gradients.
    """
    paddle.seed(0)
    return [
        (
            paddle.create_parameter(
                [1],
                "float32",
                default_initializer=paddle.nn.initializer.Constant(0.0),
            ),
            (paddle.randn(shape) / math.sqrt(math.prod(shape))).astype(dtype),
        )
        for shape in shapes
    ]
