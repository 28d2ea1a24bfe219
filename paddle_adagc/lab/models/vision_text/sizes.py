# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shapes and counts of CLIP's parameters; allocates nothing."""

import math

from paddle_adagc.lab.models.sizes import ModelSize, Shape
from paddle_adagc.lab.models.vision_text.config import CLIPConfig


def parameter_shapes(config: CLIPConfig) -> dict[str, Shape]:
    """Return name and shape of every parameter of `CLIP(config)`.

    Names and order are those of `named_parameters()`; matrices are stored
    [in, out].
    """
    vision, text, patch = (
        config.vision_width,
        config.text_width,
        config.patch_size,
    )
    shapes: dict[str, Shape] = {
        "logit_scale": (1,),
        "visual.class_embedding": (vision,),
        "visual.positional_embedding": (config.num_patches + 1, vision),
        "visual.proj": (vision, config.embed_dim),
        "visual.conv1.weight": (vision, 3, patch, patch),
        **_norm("visual.ln_pre", vision),
    }
    for index in range(config.vision_layers):
        shapes |= _block(f"visual.blocks.{index}", vision, config.mlp_ratio)
    shapes |= {
        **_norm("visual.ln_post", vision),
        "textual.positional_embedding": (config.context_length, text),
        "textual.text_projection": (text, config.embed_dim),
        "textual.token_embedding.weight": (config.vocab_size, text),
    }
    for index in range(config.text_layers):
        shapes |= _block(f"textual.blocks.{index}", text, config.mlp_ratio)
    return {**shapes, **_norm("textual.ln_final", text)}


def model_size(config: CLIPConfig) -> ModelSize:
    """Count CLIP's parameters and tensors."""
    parameters, tensors = num_parameters(config), len(parameter_shapes(config))
    return ModelSize(
        parameters=parameters,
        active_parameters=parameters,
        tensors=tensors,
        tensors_without_routers=tensors,
    )


def num_parameters(config: CLIPConfig) -> int:
    """Count the trained values."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, inputs: int, outputs: int) -> dict[str, Shape]:
    return {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}


def _block(name: str, width: int, ratio: int) -> dict[str, Shape]:
    return {
        **_norm(f"{name}.ln_1", width),
        **_linear(f"{name}.attn.in_proj", width, 3 * width),
        **_linear(f"{name}.attn.out_proj", width, width),
        **_norm(f"{name}.ln_2", width),
        **_linear(f"{name}.mlp.c_fc", width, ratio * width),
        **_linear(f"{name}.mlp.c_proj", ratio * width, width),
    }
