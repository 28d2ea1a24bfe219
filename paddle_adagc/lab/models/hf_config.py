# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers' config keys for our decoder, both ways."""

import warnings
from collections.abc import Mapping
from typing import Any

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.families import FAMILIES, Family

# The decoder supports these values only.
_FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
    "sliding_window": None,
}
_SHARED_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "initializer_range",
)
_NEEDED_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
)
# Options without a counterpart in transformers, and what follows from that.
_LEFT_OUT: dict[str, tuple[Any, str]] = {
    "router_z_loss_coef": (0.0, "which logits do not depend on"),
    "float8_linears": ([], "so its logits differ by the rounding to FP8"),
    "rms_norm_precision": (
        "float32",
        "so its logits differ by the rounding to bfloat16",
    ),
}


_SIZES = {*_NEEDED_KEYS, *_SHARED_KEYS}
_MAX_SIZE = 2**31 - 1
_MAX_LAYERS = 10_000


def config_from_hf(options: Mapping[str, Any]) -> DecoderConfig:
    """Convert a `config.json` of a supported model.

    Args:
        options: The parsed file; `model_type` is a key of `FAMILIES`.

    Raises:
        ValueError: Another model, or an option that the decoder lacks.
    """
    family = find_family(options.get("model_type"))
    for key, value in _FIXED.items():
        if options.get(key, value) != value:
            raise ValueError(
                f"{key}={options[key]!r}: the decoder supports {value!r} only."
            )
    options = {**family.defaults, **options}
    for key, value in options.items():
        limit = _MAX_LAYERS if key == "num_hidden_layers" else _MAX_SIZE
        is_number = isinstance(value, (int, float)) and key in _SIZES
        if is_number and not 0 <= value <= limit:
            raise ValueError(f"{key}={value}: not in [0, {limit}].")
    try:
        shared = {key: options[key] for key in _NEEDED_KEYS}
        shared |= {key: options[key] for key in _SHARED_KEYS if key in options}
        experts = family.read_experts(options)
    except KeyError as error:
        raise ValueError(
            f"The config holds no {error.args[0]}: add it."
        ) from error
    return DecoderConfig(
        **shared,
        rope_theta=_rope_theta(options),
        **family.options,
        **experts,
    )


def find_family(model_type: Any) -> Family:
    """Return the family of transformers' `model_type`.

    Raises:
        ValueError: It is not supported.
    """
    if model_type not in FAMILIES:
        raise ValueError(
            f"model_type={model_type!r}: use one of {sorted(FAMILIES)}."
        )
    return FAMILIES[model_type]


def family_of(config: DecoderConfig) -> Family:
    """Return the family that a decoder belongs to.

    Raises:
        ValueError: It belongs to none; the message names the option.
    """
    family = next(f for f in FAMILIES.values() if f.includes(config))
    for option, value in family.options.items():
        if getattr(config, option) != value:
            raise ValueError(
                f"{option}={getattr(config, option)!r}: transformers' "
                f"{family.class_name}, the nearest class, has {value!r}; such "
                "a model cannot be exported."
            )
    return family


def config_to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Return a decoder's `config.json`, the inverse of `config_from_hf`.

    Transformers has no router z-loss, no FP8 products and no bfloat16 norms:
    these options are left out, with a warning.

    Raises:
        ValueError: No class of transformers computes the same.
    """
    family = family_of(config)
    for option, (without, effect) in _LEFT_OUT.items():
        if getattr(config, option) != without:
            warnings.warn(
                f"{option}={getattr(config, option)} is not exported: "
                f"transformers has no such option, {effect}.",
                stacklevel=2,
            )
    theta = float(config.rope_theta)
    return {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        **{key: getattr(config, key) for key in _SHARED_KEYS},
        **_FIXED,
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        **family.write_experts(config),
    }


def _rope_theta(options: Mapping[str, Any]) -> float:
    """Read the rotary base; transformers 5 stores it in `rope_parameters`."""
    rope = options.get("rope_parameters") or options.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ValueError(f"rope_scaling={rope!r}: use a map, or null.")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(
            f"rope_type={kind!r}: the decoder supports 'default' only."
        )
    theta = rope.get("rope_theta", options.get("rope_theta"))
    if theta is None:
        raise ValueError("The config holds no rope_theta: add it.")
    return float(theta)
