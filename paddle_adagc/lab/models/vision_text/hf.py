# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""CLIP's configs and weights from the Hugging Face hub (`CLIPModel`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from paddle_adagc.lab.models.vision_text.config import CLIPConfig
from paddle_adagc.lab.models.vision_text.sizes import parameter_shapes

Array = npt.NDArray[np.generic]

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
# "eos_token_id" of configs that are older than the option: the end is the
# token with the highest number.
_LEGACY_END = 2
# Default of transformers' CLIPTextConfig.
_DEFAULT_END = 49407


def config_from_hf(options: Mapping[str, Any]) -> CLIPConfig:
    """Convert a `config.json`.

    Args:
        options: The parsed file; `model_type` is "clip".

    Raises:
        ValueError: Another model, or an option that `CLIP` lacks.
    """
    if options.get("model_type") != "clip":
        raise ValueError(
            f"model_type={options.get('model_type')!r}: use 'clip'"
        )
    try:
        return _config_from_hf(options)
    except KeyError as error:
        raise ValueError(f"the config holds no {error.args[0]}") from error


def _config_from_hf(options: Mapping[str, Any]) -> CLIPConfig:
    vision, text = options["vision_config"], options["text_config"]
    for name in ("hidden_act", "layer_norm_eps"):
        if vision[name] != text[name]:
            raise ValueError(
                f"{name} is {vision[name]!r} for images and {text[name]!r} "
                "for texts: CLIP has one for both"
            )
    ratios = {
        tower["intermediate_size"] / tower["hidden_size"]
        for tower in (vision, text)
    }
    ratio = ratios.pop()
    if ratios or ratio != int(ratio):
        raise ValueError(
            f"intermediate_size is {vision['intermediate_size']} for images "
            f"and {text['intermediate_size']} for texts: CLIP has the same "
            "whole multiple of hidden_size in both"
        )
    end = text.get("eos_token_id", _DEFAULT_END)
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
        mlp_ratio=int(ratio),
        activation=vision["hidden_act"],
        end_token=None if end == _LEGACY_END else end,
        layer_norm_eps=vision["layer_norm_eps"],
        logit_scale_init=options["logit_scale_init_value"],
    )


def state_from_hf(
    weights: Mapping[str, Array], config: CLIPConfig
) -> dict[str, Array]:
    """Convert a checkpoint's arrays to a state dict of `CLIP`.

    Args:
        weights: Array by Hugging Face name; `position_ids` are ignored.
        config: The model's config, see `config_from_hf`.

    Raises:
        ValueError: `weights` lacks names or holds unknown ones.
    """
    sources = {name: _hf_names(name) for name in parameter_shapes(config)}
    expected = {name for names in sources.values() for name in names}
    given = {name for name in weights if not name.endswith("position_ids")}
    missing, unknown = expected - given, given - expected
    if missing or unknown:
        raise ValueError(
            f"The checkpoint does not fit the config: missing "
            f"{sorted(missing)}, unknown {sorted(unknown)}."
        )
    state = {}
    for name, names in sources.items():
        array = np.concatenate([np.atleast_1d(weights[n]) for n in names])
        if name.endswith(_TRANSPOSED):
            array = array.T
        state[name] = np.ascontiguousarray(array)
    return state


def _hf_names(name: str) -> list[str]:
    """Return the checkpoint's names: three for the joint query, key, value."""
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
