# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Hugging Face transformers' config keys for our decoder, both ways."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from paddle_adagc.lab.models.config import DecoderConfig

# Config keys that must have this value: the decoder has no such option.
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
# What transformers' configs mean where they, or older ones, do not say it.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen3": {"tie_word_embeddings": False, "head_dim": 128},
    "mixtral": {"tie_word_embeddings": False, "num_key_value_heads": 8},
    "ernie4_5_moe": {"tie_word_embeddings": True, "num_key_value_heads": 4},
}
# What transformers has no option for, by family.
_REQUIRED: dict[str, dict[str, Any]] = {
    "llama": {"rope_layout": "half"},
    "qwen3": {"rope_layout": "half"},
    "mixtral": {
        "rope_layout": "half",
        "qk_norm": False,
        "moe_norm_topk_prob": True,
    },
    "ernie4_5_moe": {
        "rope_layout": "interleaved",
        "qk_norm": False,
        "moe_norm_topk_prob": True,
        "moe_correction_bias": True,
    },
}
# Options without a counterpart in transformers, and what follows from that.
_LEFT_OUT: dict[str, tuple[Any, str]] = {
    "router_z_loss_coef": (0.0, "which logits do not depend on"),
    "float8_linears": ([], "so its logits differ by the rounding to FP8"),
    "rms_norm_precision": (
        "float32",
        "so its logits differ by the rounding to bfloat16",
    ),
}
_NORM_MIN = 1e-12
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
}


def config_from_hf(options: Mapping[str, Any]) -> DecoderConfig:
    """Convert a `config.json` of a supported model.

    Args:
        options: The parsed file; `model_type` is "llama", "qwen3", "mixtral"
            or "ernie4_5_moe".

    Raises:
        ValueError: Another model, or an option that the decoder lacks.
    """
    family = options.get("model_type")
    if family not in _FAMILY_OPTIONS:
        raise ValueError(
            f"model_type={family!r}: use one of {sorted(_FAMILY_OPTIONS)}."
        )
    for key, value in _FIXED.items():
        if options.get(key, value) != value:
            raise ValueError(
                f"{key}={options[key]!r}: the decoder supports {value!r} only."
            )
    options = {**_DEFAULTS[str(family)], **options}
    try:
        shared = {key: options[key] for key in _NEEDED_KEYS}
        shared |= {key: options[key] for key in _SHARED_KEYS if key in options}
        experts = _FAMILY_OPTIONS[str(family)](options)
    except KeyError as error:
        raise ValueError(
            f"The config holds no {error.args[0]}: add it."
        ) from error
    return DecoderConfig(**shared, rope_theta=_rope_theta(options), **experts)


def hf_family(config: DecoderConfig) -> str:
    """The Hugging Face `model_type` that a decoder is one of.

    Raises:
        ValueError: It is none of them; the message says which option.
    """
    if config.moe_num_experts == 0:
        family = "qwen3" if config.qk_norm else "llama"
    elif (
        config.moe_correction_bias
        or config.moe_num_shared_experts
        or config.rope_layout == "interleaved"
    ):
        family = "ernie4_5_moe"
    else:
        family = "mixtral"
    for option, value in _REQUIRED[family].items():
        if getattr(config, option) != value:
            raise ValueError(
                f"{option}={getattr(config, option)!r}: transformers' "
                f"{_CLASSES[family]}, the nearest class, has {value!r}; such "
                "a model cannot be exported."
            )
    return family


def config_to_hf(config: DecoderConfig) -> dict[str, Any]:
    """The `config.json` of a decoder, the inverse of `config_from_hf`.

    Transformers has no router z-loss, no products in FP8 and no norms in
    bfloat16: these options are left out, with a warning.

    Raises:
        ValueError: No class of transformers computes the same.
    """
    family = hf_family(config)
    for option, (without, effect) in _LEFT_OUT.items():
        if getattr(config, option) != without:
            warnings.warn(
                f"{option}={getattr(config, option)} is not exported: "
                f"transformers has no such option, {effect}.",
                stacklevel=2,
            )
    theta = float(config.rope_theta)
    return {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        **{key: getattr(config, key) for key in _SHARED_KEYS},
        **_FIXED,
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        **_EXPERTS_TO_HF.get(family, lambda config: {})(config),
    }


def _rope_theta(options: Mapping[str, Any]) -> float:
    """The rotary base, of transformers 5 (`rope_parameters`) or before."""
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


def _mixtral(options: Mapping[str, Any]) -> dict[str, Any]:
    top_k = options["num_experts_per_tok"]
    return {
        "moe_num_experts": options["num_local_experts"],
        "moe_top_k": top_k,
        "router_aux_loss_coef": _shortest(
            options["router_aux_loss_coef"] * top_k
        ),
    }


def _ernie(options: Mapping[str, Any]) -> dict[str, Any]:
    num_layers = options["num_hidden_layers"]
    last = options["moe_layer_end_index"]
    end = num_layers if last == -1 else last + 1
    interval = options["moe_layer_interval"]
    layers = [
        index
        for index in range(options["moe_layer_start_index"], end)
        if (index + 1) % interval == 0
    ]
    top_k = options["moe_k"]
    if options.get("moe_norm_min", _NORM_MIN) != _NORM_MIN:
        raise ValueError(
            f"moe_norm_min={options['moe_norm_min']!r}: the decoder supports "
            f"{_NORM_MIN} only."
        )
    return {
        "rope_layout": "interleaved",
        "moe_num_experts": options["moe_num_experts"],
        "moe_top_k": top_k,
        "moe_intermediate_size": options["moe_intermediate_size"],
        "moe_num_shared_experts": options["moe_num_shared_experts"],
        "moe_layers": None if len(layers) == num_layers else layers,
        "moe_correction_bias": True,
        "router_aux_loss_coef": _shortest(
            options["router_aux_loss_coef"] * top_k
        ),
    }


def _mixtral_to_hf(config: DecoderConfig) -> dict[str, Any]:
    if len(_moe_layers(config)) < config.num_hidden_layers:
        raise ValueError(
            f"moe_layers={config.moe_layers!r}: transformers' Mixtral has "
            "experts in every layer; such a model cannot be exported."
        )
    return {
        "intermediate_size": config.moe_intermediate_size,
        "num_local_experts": config.moe_num_experts,
        "num_experts_per_tok": config.moe_top_k,
        "router_aux_loss_coef": config.router_aux_loss_coef / config.moe_top_k,
    }


def _ernie_to_hf(config: DecoderConfig) -> dict[str, Any]:
    layers = _moe_layers(config)
    between = range(layers[0], layers[-1] + 1) if layers else range(0)
    for interval in range(1, config.num_hidden_layers + 1):
        if layers and layers == [i for i in between if (i + 1) % interval == 0]:
            break
    else:
        raise ValueError(
            f"moe_layers={config.moe_layers!r}: transformers' ERNIE-4.5 has "
            "experts in every n-th layer of a range; such a model cannot be "
            "exported."
        )
    return {
        "moe_num_experts": config.moe_num_experts,
        "moe_k": config.moe_top_k,
        "moe_intermediate_size": config.moe_intermediate_size,
        "moe_num_shared_experts": config.moe_num_shared_experts,
        "moe_layer_start_index": layers[0],
        "moe_layer_end_index": layers[-1],
        "moe_layer_interval": interval,
        "moe_norm_min": _NORM_MIN,
        "router_aux_loss_coef": config.router_aux_loss_coef / config.moe_top_k,
    }


def _moe_layers(config: DecoderConfig) -> list[int]:
    layers = range(config.num_hidden_layers)
    return [index for index in layers if config.is_moe_layer(index)]


def _shortest(value: float) -> float:
    """To 15 digits, so that a coefficient that was divided comes back."""
    return float(f"{value:.15g}")


_EXPERTS_TO_HF: dict[str, Callable[[DecoderConfig], dict[str, Any]]] = {
    "mixtral": _mixtral_to_hf,
    "ernie4_5_moe": _ernie_to_hf,
}
_FAMILY_OPTIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "llama": lambda options: {},
    "qwen3": lambda options: {"qk_norm": True},
    "mixtral": _mixtral,
    "ernie4_5_moe": _ernie,
}
