# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parameters of whole models."""

import pytest
from adagc_lab.models.families import preset
from adagc_lab.models.shapes import (
    model_size,
)
from adagc_lab.models.vision_text import PRESETS, CLIPConfig


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
