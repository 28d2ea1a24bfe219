# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parameters of whole models."""

import pytest
from adagc_lab.models.families import preset
from adagc_lab.models.shapes import (
    model_size,
    parameter_shapes,
)
from adagc_lab.models.vision_text import PRESETS, CLIPConfig
from lab.models.tiny import TINY, build


def shapes_of(model):
    return [(n, tuple(p.shape)) for n, p in model.named_parameters()]


WESAR = {"initialization": "wesar"}


@pytest.mark.parametrize(
    ("family", "options"),
    [*((family, {}) for family in TINY), ("ernie4_5_moe", WESAR)],
)
def test_shapes_and_counts_are_the_model_s(family, options):
    model = build(family, **options)
    assert [*parameter_shapes(model.config).items()] == shapes_of(model)
    size = model_size(model.config)
    assert size.parameters == sum(int(p.size) for p in model.parameters())
    assert size.tensors == len(model.parameters())
    routers = size.tensors - size.tensors_without_routers
    names = [key for key, _ in shapes_of(model)]
    assert routers == sum(".mlp.gate." in key for key in names)
    if model.config.tie_word_embeddings:
        assert size.active_parameters == size.parameters
    else:
        assert size.active_parameters < size.parameters


def test_vit_b_32_has_openai_s_size():
    config = CLIPConfig.from_fields({"preset": "clip-vit-b-32"}, PRESETS)
    size = model_size(config)
    assert size.parameters == size.active_parameters == 151_277_313
    assert size.tensors == size.tensors_without_routers == 302


@pytest.mark.parametrize(
    ("name", "total", "active", "tensors", "routers"),
    [
        ("llama2-1.3b", 1.339e9, 1.274e9, 219, 0),
        ("llama2-7b", 6.738e9, 6.607e9, 291, 0),
        ("qwen3-1.7b", 1.721e9, 1.721e9, 310, 0),
        ("mixtral-8x1b", 7.001e9, 1.953e9, 747, 24),
        ("ernie-10b-a1.4b", 10.56e9, 1.448e9, (9 + 3 * 48) * 25 + 28, 25),
    ],
)
def test_counts_fit_the_names_of_the_paper(
    name, total, active, tensors, routers
):
    size = model_size(preset(name))
    assert size.parameters == pytest.approx(total, rel=1e-3)
    assert size.active_parameters == pytest.approx(active, rel=1e-3)
    assert size.tensors == tensors
    assert size.tensors_without_routers == tensors - routers
