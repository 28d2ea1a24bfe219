# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whole tensors and the parts of them that a rank holds."""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import paddle
from paddle import Tensor, nn

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.initialization import ALPHA, initial_alpha, role_of
from paddle_adagc.lab.models.layers import weight_initializer
from paddle_adagc.lab.models.parallel import topology
from paddle_adagc.lab.models.sizes import parameter_shapes
from paddle_adagc.parallel.layout import read_layout, unwrap

Array = npt.NDArray[np.generic]


def local_part(whole: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's part of a tensor.

    Args:
        whole: The logical tensor.
        parameter: The rank's parameter: the whole, or under tensor
            parallelism a part along its `split_axis`.
    """
    if not getattr(parameter, "is_distributed", False):
        return whole
    axis = topology().model
    return paddle.split(whole, axis.size, axis=parameter.split_axis)[axis.rank]


def parameters_by_key(model: nn.Layer) -> dict[str, Tensor]:
    """Return this rank's parameters by their names in the whole model.

    Args:
        model: Decoder of any layout, with or without fleet's wrappers.
    """
    model = unwrap(model)
    layout = read_layout(model)
    return {layout[p.name].key: p for p in model.parameters()}


@paddle.no_grad()
def initialize_weights(
    model: nn.Layer, config: DecoderConfig, seed: int
) -> None:
    """Initialise a decoder of any layout like one process with this seed.

    Every rank draws all tensors in the order in which
    `DecoderForCausalLM(config)` does after `paddle.seed(seed)`, one at a
    time, and keeps its parts. All layouts start from bit-equal weights (on the
    same kind of device).

    Args:
        model: Decoder of any layout.
        config: The decoder's config.
        seed: Seed of Paddle's generator, which is left as after building the
            whole model.
    """
    parameters = parameters_by_key(model)
    paddle.seed(seed)
    for key, whole in _drawn(config):
        if key in parameters:
            parameter = parameters[key]
            part = local_part(whole, parameter).astype(parameter.dtype)
            parameter.set_value(part)


def _drawn(config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    for key, shape in parameter_shapes(config).items():
        whole = paddle.empty(shape, paddle.get_default_dtype())
        if key.endswith(f".{ALPHA}"):
            yield (
                key,
                paddle.full_like(whole, initial_alpha(config, role_of(key))),
            )
        elif len(shape) == 1:  # a norm's scale
            yield key, paddle.ones_like(whole)
        else:
            weight_initializer(config, role_of(key))(whole)
            yield key, whole


@paddle.no_grad()
def load_weights(model: nn.Layer, weights: Mapping[str, Array]) -> None:
    """Load whole tensors into a decoder of any layout.

    Args:
        model: Decoder of any layout.
        weights: Whole tensor by its name in the whole model; may hold more
            than this rank needs.

    Raises:
        KeyError: A tensor that this rank holds is missing.
    """
    for key, parameter in parameters_by_key(model).items():
        whole = paddle.to_tensor(weights[key], place=parameter.place)
        parameter.set_value(
            local_part(whole, parameter).astype(parameter.dtype)
        )
