# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Names, shapes, counts and first values of a whole model's parameters."""

import dataclasses
import math
from typing import Any
from unittest import mock

import paddle
from paddle import nn
from paddle.distributed import fleet
from paddle.utils import unique_name

from adagc_lab.models.config import DecoderConfig, PretrainedModel
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.models.vision_text import CLIP, CLIPConfig
from paddle_adagc.parallel.layout import read_layout
from paddle_adagc.parallel.topology import read_topology

Shape = tuple[int, ...]
ModelConfig = DecoderConfig | CLIPConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Counts of a whole model."""

    parameters: int  # trained values; a tied embedding counts once
    active_parameters: int  # values that take part in the product for one token

    tensors: int
    tensors_without_routers: int  # the paper's count, (9 + 3E) L + 3 for ERNIE


_KNOWN: dict[tuple[type, str], dict[str, Shape]] = {}
"""Shapes by config: of a model with thousands of tensors they take a second."""


def _options(config: ModelConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.field_names()}


def whole_model(config: ModelConfig) -> PretrainedModel:
    """Build the model in one piece, its parameters without memory."""
    kind = CLIP if isinstance(config, CLIPConfig) else DecoderForCausalLM
    options = _options(config)
    with (
        paddle.LazyGuard(),
        # Later parameters keep their names, and no rank splits these.
        unique_name.guard(),
        mock.patch.object(fleet.fleet, "_hcg", None, create=True),
    ):
        return kind(kind.config_class(**options))


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return name and shape of every parameter of the model in one piece.

    In the order of `named_parameters()`; matrices are stored [in, out].
    """
    key = type(config), repr(_options(config))
    if key not in _KNOWN:
        named = whole_model(config).named_parameters()
        _KNOWN[key] = {name: tuple(p.shape) for name, p in named}
    return dict(_KNOWN[key])


def model_size(config: ModelConfig) -> ModelSize:
    """Count the model's parameters and tensors.

    Active is what takes part in the product for one token: the head does,
    tied or not; the embedding lookup reads a single row and does not; of the
    routed experts `moe_top_k` do. This is the "A1.4B" of ERNIE 10B-A1.4B.
    """
    shapes = parameter_shapes(config)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    parameters = active = sum(sizes.values())
    if isinstance(config, DecoderConfig):
        num_experts = max(config.moe_num_experts, 1)
        routed = sum(n for key, n in sizes.items() if ".experts." in key)
        active += routed * config.moe_top_k // num_experts - routed
        if not config.tie_word_embeddings:
            active -= sizes["model.embed_tokens.weight"]
    return ModelSize(
        parameters=parameters,
        active_parameters=active,
        tensors=len(shapes),
        tensors_without_routers=sum(".mlp.gate." not in n for n in shapes),
    )


@paddle.no_grad()
def initialize_weights(
    model: nn.Layer, config: DecoderConfig, seed: int
) -> None:
    """Initialise a decoder of any layout like one process with this seed.

    Every rank draws all tensors as `DecoderForCausalLM(config)` does after
    `paddle.seed(seed)`, one at a time, and keeps its parts. Paddle's generator
    is left as after that.
    """
    layout, axis = read_layout(model), read_topology().model
    parameters = {layout[p.name].key: p for p in model.parameters()}
    paddle.seed(seed)
    for key, whole in whole_model(config).named_parameters():
        whole.initialize()
        parameter, part = parameters[key], whole
        if getattr(parameter, "is_distributed", False):
            parts = paddle.split(whole, axis.size, axis=parameter.split_axis)
            part = parts[axis.rank]
        parameter.set_value(part.astype(parameter.dtype))
        whole._clear_data()
