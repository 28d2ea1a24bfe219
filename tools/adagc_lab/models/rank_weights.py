# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The same initial weights in every layout."""

import paddle
from paddle import Tensor, nn

from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.shapes import whole_model
from paddle_adagc.parallel.layout import read_layout, unwrap
from paddle_adagc.parallel.topology import read_topology


def parameters_by_key(model: nn.Layer) -> dict[str, Tensor]:
    """Return this rank's parameters by their names in the whole model."""
    model = unwrap(model)
    layout = read_layout(model)
    return {layout[p.name].key: p for p in model.parameters()}


@paddle.no_grad()
def initialize_weights(
    model: nn.Layer, config: DecoderConfig, seed: int
) -> None:
    """Initialise a decoder of any layout like one process with this seed.

    Every rank draws all tensors as `DecoderForCausalLM(config)` does after
    `paddle.seed(seed)`, one at a time, and keeps its parts. Paddle's generator
    is left as after that.
    """
    parameters = parameters_by_key(model)
    paddle.seed(seed)
    for key, whole in whole_model(config).named_parameters():
        whole.initialize()
        if key in parameters:
            _set(parameters[key], whole)
        whole._clear_data()


def _set(parameter: Tensor, whole: Tensor) -> None:
    """Set this rank's part of a whole tensor."""
    if getattr(parameter, "is_distributed", False):
        axis = read_topology().model
        parts = paddle.split(whole, axis.size, axis=parameter.split_axis)
        whole = parts[axis.rank]
    parameter.set_value(whole.astype(parameter.dtype))
