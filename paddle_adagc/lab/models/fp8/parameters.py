# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a decoder are multiplied in FP8."""

from paddle import nn

from paddle_adagc.lab.models.fp8.linear import is_float8
from paddle_adagc.lab.models.rank_weights import parameters_by_key


def quantized_parameters(model: nn.Layer) -> list[str]:
    """Return the names, in the whole model, of weights multiplied in FP8.

    Read from the layers, not from the config.

    Args:
        model: A decoder, spread or not; of a spread one this rank's part.
    """
    weights = {
        layer.weight.name for layer in model.sublayers() if is_float8(layer)
    }
    return [
        key
        for key, parameter in parameters_by_key(model).items()
        if parameter.name in weights
    ]
