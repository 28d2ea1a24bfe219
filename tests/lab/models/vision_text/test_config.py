# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""CLIP's options."""

import pytest

from paddle_adagc.lab.models.vision_text import (
    PRESETS,
    CLIPConfig,
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": 30}, "image_size=30 is not a multiple"),
        ({"vision_heads": 5}, "vision_width=64"),
        ({"text_heads": 7}, "text_width=64"),
        ({"patch_dropout": 1.0}, "patch_dropout must be less than 1"),
        ({"patch_dropout": -0.1}, "patch_dropout must be at least 0"),
        ({"text_layers": 0}, "text_layers"),
        ({"text_layer": 2}, "did you mean 'text_layers'"),
        ({"preset": "vit-b-32"}, "did you mean 'clip-vit-b-32'"),
    ],
)
def test_bad_options_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        CLIPConfig.from_fields(fields, PRESETS)


def test_options_replace_those_of_a_preset():
    config = CLIPConfig.from_fields(
        {"preset": "clip-vit-b-32", "vision_layers": 1}, PRESETS
    )
    assert (config.vision_layers, config.vision_width) == (1, 768)
    assert config.num_patches == 49
    assert config.end_token == 49407
