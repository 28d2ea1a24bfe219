# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""CLIP against golden logits of Hugging Face's (see make_golden.py)."""

from pathlib import Path

import numpy as np
import paddle
from helpers import load_golden

from paddle_adagc.lab.models.shapes import parameter_shapes
from paddle_adagc.lab.models.vision_text import CLIP, CLIPConfig

GOLDEN = Path(__file__).parent / "golden"
_TOWERS = {"visual": "vision_model", "textual": "text_model"}
_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_TOWER = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": (
        "vision_model.embeddings.position_embedding.weight"
    ),
    "visual.proj": "visual_projection.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre": "vision_model.pre_layrnorm",  # misspelt in transformers
    "visual.ln_post": "vision_model.post_layernorm",
    "textual.positional_embedding": (
        "text_model.embeddings.position_embedding.weight"
    ),
    "textual.text_projection": "text_projection.weight",
    "textual.token_embedding.weight": (
        "text_model.embeddings.token_embedding.weight"
    ),
    "textual.ln_final": "text_model.final_layer_norm",
}
# The checkpoint's matrices are [out, in]; lookups and convolutions are alike.
_TRANSPOSED = (
    ".proj",
    ".text_projection",
    "_proj.weight",
    ".c_fc.weight",
)


def config_from_hf(options):
    """CLIP's config from a ``config.json``."""
    vision, text = options["vision_config"], options["text_config"]
    return CLIPConfig(
        embed_dim=options["projection_dim"],
        image_size=vision["image_size"],
        patch_size=vision["patch_size"],
        vision_width=vision["hidden_size"],
        vision_layers=vision["num_hidden_layers"],
        vision_heads=vision["num_attention_heads"],
        vocab_size=text["vocab_size"],
        context_length=text["max_position_embeddings"],
        text_width=text["hidden_size"],
        text_layers=text["num_hidden_layers"],
        text_heads=text["num_attention_heads"],
    )


def state_from_hf(weights, config):
    """A state dict of CLIP from a checkpoint's arrays, each used once."""
    left = {name for name in weights if not name.endswith("position_ids")}
    state = {}
    for name in parameter_shapes(config):
        names = _hf_names(name)
        left -= {*names}
        array = np.concatenate([np.atleast_1d(weights[n]) for n in names])
        array = array.T if name.endswith(_TRANSPOSED) else array
        state[name] = np.ascontiguousarray(array)
    assert not left
    return state


def _hf_names(name):
    """The checkpoint's names: three for the joint query, key, value."""
    for ours, theirs in _TOWER.items():
        if name.startswith(ours):
            return [theirs + name.removeprefix(ours)]
    if ".blocks." not in name:
        return [name]
    tower, _, index, part = name.split(".", 3)
    layer = f"{_TOWERS[tower]}.encoder.layers.{index}"
    layer_part, kind = part.rsplit(".", 1)
    if layer_part == "attn.in_proj":
        return [f"{layer}.self_attn.{x}_proj.{kind}" for x in "qkv"]
    return [f"{layer}.{_BLOCK[layer_part]}.{kind}"]


def test_logits():
    options, weights, arrays = load_golden(GOLDEN / "clip.npz")
    config = config_from_hf(options)
    model = CLIP(config)
    missing, unexpected = model.set_state_dict(state_from_hf(weights, config))
    assert not missing
    assert not unexpected
    model.eval()
    images = model.encode_image(paddle.to_tensor(arrays["pixel_values"]))
    texts = model.encode_text(paddle.to_tensor(arrays["input_ids"]))
    logits = model.logit_scale.exp() * images @ texts.T
    np.testing.assert_allclose(logits.numpy(), arrays["logits"], atol=1e-4)
    assert arrays["logits"].std() > 1
