# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Our decoder and Hugging Face transformers: config keys, names, layouts."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.families import FAMILIES, Family
from paddle_adagc.lab.models.shapes import CORRECTION_BIAS, state_shapes

Array = npt.NDArray[np.generic]

_ROTARY = ".rotary_emb.inv_freq"
_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
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
_OPTIONAL_KEYS = {
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
    "initializer_range",
}
# Options without a counterpart in transformers: value without, rounding.
_LEFT_OUT: dict[str, tuple[Any, str]] = {
    "float8_linears": ([], "FP8"),
    "rms_norm_precision": ("float32", "bfloat16"),
}
_MAX_SIZE = 2**31 - 1
_MAX_LAYERS = 10_000


def config_from_hf(options: Mapping[str, Any]) -> DecoderConfig:
    """Convert a parsed `config.json`, or refuse it with a ValueError."""
    model_type = options.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"model_type={model_type!r}: use one of {sorted(FAMILIES)}."
        )
    family = FAMILIES[model_type]
    for key, value in _FIXED.items():
        if options.get(key, value) != value:
            raise ValueError(
                f"{key}={options[key]!r}: the decoder supports {value!r} only."
            )
    options = {**family.defaults, **options}
    for key, value in options.items():
        limit = _MAX_LAYERS if key == "num_hidden_layers" else _MAX_SIZE
        is_number = isinstance(value, (int, float)) and key in _SHARED_KEYS
        if is_number and not 0 <= value <= limit:
            raise ValueError(f"{key}={value}: not in [0, {limit}].")
    try:
        shared = {
            key: options[key]
            for key in _SHARED_KEYS
            if key in options or key not in _OPTIONAL_KEYS
        }
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


def family_of(config: DecoderConfig) -> Family:
    """Return the family that a decoder belongs to, or raise ValueError."""
    family = next(f for f in FAMILIES.values() if f.includes(config))
    for option, value in {**family.options, "initialization": "normal"}.items():
        if getattr(config, option) != value:
            raise ValueError(
                f"{option}={getattr(config, option)!r}: transformers' "
                f"{family.class_name}, the nearest class, has {value!r}; such "
                "a model cannot be exported."
            )
    return family


def config_to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Return a decoder's `config.json`, the inverse of `config_from_hf`.

    A decoder that no class of transformers computes is refused, but for FP8
    products and bfloat16 norms: these are left out, with a warning.
    """
    family = family_of(config)
    for option, (without, kind) in _LEFT_OUT.items():
        if getattr(config, option) != without:
            warnings.warn(
                f"{option}={getattr(config, option)} is not exported: "
                "transformers has no such option, so its logits differ by the "
                f"rounding to {kind}.",
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


def _hf_name(name: str, family: Family) -> str:
    mlp, _, last = name.rpartition(".")
    if last == CORRECTION_BIAS:
        return f"{mlp}.moe_statics.{last}"
    return family.tensor_name(name)


def _transposed(name: str, array: Array) -> Array:
    """Turn matrices around: ours are [in, out], the checkpoint's [out, in]."""
    is_map = array.ndim == 2 and "embed_tokens" not in name
    return array.T if is_map else array


def state_from_hf(
    weights: Mapping[str, Array], config: DecoderConfig
) -> dict[str, Array]:
    """Convert a checkpoint's arrays to a state dict of `DecoderForCausalLM`.

    Like transformers, it leaves out a stored copy of a tied head and the rotary
    frequencies of old Llama checkpoints.
    """
    family = family_of(config)
    names = {name: _hf_name(name, family) for name in state_shapes(config)}
    held = {k: v for k, v in weights.items() if not k.endswith(_ROTARY)}
    if (
        config.tie_word_embeddings
        and {_EMBEDDING, _HEAD} <= held.keys()
        and np.array_equal(held[_EMBEDDING], held[_HEAD])
    ):
        del held[_HEAD]
    expected = {*names.values()}
    missing, unknown = expected - held.keys(), held.keys() - expected
    if missing or unknown:
        raise ValueError(
            f"The checkpoint does not fit the config: missing "
            f"{sorted(missing)}, unknown {sorted(unknown)}."
        )
    state = {}
    for name, theirs in names.items():
        array = held[theirs]
        if name.endswith(CORRECTION_BIAS):
            array = array.reshape(-1)
        state[name] = np.ascontiguousarray(_transposed(name, array))
    return state


def state_to_hf(
    state: Mapping[str, Array], config: DecoderConfig
) -> dict[str, Array]:
    """Convert tensors to Hugging Face's names and layout, without copies."""
    family = family_of(config)
    return {
        _hf_name(name, family): array.reshape(1, -1)
        if name.endswith(CORRECTION_BIAS)
        else _transposed(name, array)
        for name, array in state.items()
    }
