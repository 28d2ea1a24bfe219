# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Options of both models, and the sizes of the presets."""

import pytest
from adagc_lab.models import vision_text
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.families import preset
from adagc_lab.models.shapes import model_size
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


def test_vit_b_32_has_openai_s_size():
    config = CLIPConfig.from_fields(
        {"preset": "clip-vit-b-32"}, vision_text.PRESETS
    )
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
