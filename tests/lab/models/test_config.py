# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Options of both models that are refused."""

import pytest
from adagc_lab.models import vision_text
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.families import preset
from adagc_lab.models.vision_text import CLIPConfig

TWO = {"moe_num_experts": 2}
WESAR_TIED = {"initialization": "wesar", "tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_attention_heads": 6}, "give head_dim"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"head_dim": 7}, "head_dim=7"),
        ({"moe_num_shared_experts": 1}, "give moe_num_experts"),
        (TWO | {"moe_top_k": 3}, "moe_top_k=3"),
        (WESAR_TIED, "tie_word_embeddings=True with initialization='wesar'"),
        ({"float8_linears": ["attention", "router"]}, "'router'"),
    ],
)
def test_refuses_bad_values(options, message):
    with pytest.raises(ValueError, match=message):
        DecoderConfig(**options)


def test_unknown_names_get_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'llama2-7b'"):
        preset("llama2_7b")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": 30}, "image_size=30 is not a multiple"),
        ({"vision_heads": 5}, "vision_width=64"),
        ({"text_heads": 7}, "text_width=64"),
        ({"text_layer": 2}, "did you mean 'model.text_layers'"),
        ({"preset": "vit-b-32"}, "did you mean 'clip-vit-b-32'"),
    ],
)
def test_bad_options_of_clip_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        CLIPConfig.from_fields(fields, vision_text.PRESETS)
