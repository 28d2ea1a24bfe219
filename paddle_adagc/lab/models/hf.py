# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Our decoder and Hugging Face transformers: config keys, names, layouts."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.families import FAMILIES, Family
from paddle_adagc.lab.models.initialization import (
    ALPHA,
    embedding_factor,
    plain_config,
)
from paddle_adagc.lab.models.shapes import parameter_shapes

Array = npt.NDArray[np.generic]

_ROTARY = ".rotary_emb.inv_freq"
_EMBEDDING = "model.embed_tokens.weight"
_FINAL_NORM = "model.norm.weight"
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
# Options without a counterpart in transformers, and what follows from that.
_LEFT_OUT: dict[str, tuple[Any, str]] = {
    "float8_linears": ([], "so its logits differ by the rounding to FP8"),
    "rms_norm_precision": (
        "float32",
        "so its logits differ by the rounding to bfloat16",
    ),
}
_MAX_SIZE = 2**31 - 1
_MAX_LAYERS = 10_000


def config_from_hf(options: Mapping[str, Any]) -> DecoderConfig:
    """Convert a parsed `config.json`, or refuse it with a ValueError."""
    family = find_family(options.get("model_type"))
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


def find_family(model_type: Any) -> Family:
    """Return the family of transformers' `model_type`, or raise ValueError."""
    if model_type not in FAMILIES:
        raise ValueError(
            f"model_type={model_type!r}: use one of {sorted(FAMILIES)}."
        )
    return FAMILIES[model_type]


def family_of(config: DecoderConfig) -> Family:
    """Return the family that a decoder belongs to, or raise ValueError."""
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

    Transformers has no FP8 products and no bfloat16 norms: these options are
    left out, with a warning. A decoder that none of its classes computes is
    refused.
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


class HFTensor(NamedTuple):
    """Place of a tensor in a Hugging Face checkpoint."""

    name: str
    transpose: bool
    """The checkpoint holds the transpose of our matrix."""


def hf_tensors(config: DecoderConfig, family: Family) -> dict[str, HFTensor]:
    """Map our names, correction biases included, to the checkpoint's.

    Our names are those of a decoder without multipliers (`folded_tensors`).
    Our matrices are [in, out], the checkpoint's [out, in].
    """
    tensors = {
        name: HFTensor(
            family.tensor_name(name),
            transpose=len(shape) == 2 and "embed_tokens" not in name,
        )
        for name, shape in parameter_shapes(plain_config(config)).items()
    }
    for name in correction_biases(config):
        mlp, bias = name.rsplit(".", 1)
        tensors[name] = HFTensor(f"{mlp}.moe_statics.{bias}", False)
    return tensors


def correction_biases(config: DecoderConfig) -> list[str]:
    """Return our names of the correction biases, each [num_experts]."""
    if not config.moe_correction_bias:
        return []
    return [
        f"model.layers.{index}.mlp.e_score_correction_bias"
        for index in config.layers_with_experts
    ]


def state_from_hf(
    weights: Mapping[str, Array], config: DecoderConfig, family: Family
) -> dict[str, Array]:
    """Convert a checkpoint's arrays to a state dict of `DecoderForCausalLM`.

    Like transformers, it leaves out a stored copy of a tied head and the rotary
    frequencies of old Llama checkpoints.
    """
    tensors = hf_tensors(config, family)
    if config.tie_word_embeddings and _holds_tied_head(weights):
        weights = {k: v for k, v in weights.items() if k != _HEAD}
    weights = {k: v for k, v in weights.items() if not k.endswith(_ROTARY)}
    expected = {tensor.name for tensor in tensors.values()}
    missing, unknown = expected - weights.keys(), weights.keys() - expected
    if missing or unknown:
        raise ValueError(
            f"The checkpoint does not fit the config: missing "
            f"{sorted(missing)}, unknown {sorted(unknown)}."
        )
    state = {}
    for name, (theirs, transpose) in tensors.items():
        array = weights[theirs]
        if name.endswith("e_score_correction_bias"):
            array = array.reshape(-1)
        state[name] = np.ascontiguousarray(array.T if transpose else array)
    return state


def state_to_hf(
    state: Mapping[str, Array], config: DecoderConfig
) -> Iterator[tuple[str, Array]]:
    """Convert a decoder's tensors to Hugging Face's names and layout.

    Transformers knows no multipliers of the initialisation: they are folded
    into the weights.
    """
    tensors = hf_tensors(config, family_of(config))
    own = {*parameter_shapes(config), *correction_biases(config)}
    missing, unknown = own - state.keys(), state.keys() - own
    if missing or unknown:
        raise ValueError(
            f"The weights do not fit the config: missing {sorted(missing)}, "
            f"unknown {sorted(unknown)}."
        )
    for name, array in folded_tensors(state, config):
        theirs, transpose = tensors[name]
        if name.endswith("e_score_correction_bias"):
            array = array.reshape(1, -1)
        yield theirs, np.ascontiguousarray(array.T if transpose else array)


def _holds_tied_head(weights: Mapping[str, Array]) -> bool:
    held = {_EMBEDDING, _HEAD} <= weights.keys()
    return held and np.array_equal(weights[_EMBEDDING], weights[_HEAD])


def folded_tensors(
    state: Mapping[str, Array], config: DecoderConfig
) -> Iterator[tuple[str, Array]]:
    """Fold multipliers into the weights; the decoder computes the same.

    WeSaR's scales go into their matrices, the embedding's factor into the
    embedding. If the head is tied to the embedding, the final norm is divided
    by the factor, so that the logits stay. Products are taken in float32 at
    least and rounded to the tensor's dtype. The result fits the decoder of
    `plain_config(config)`, in its order.
    """
    shapes = parameter_shapes(config)
    plain = parameter_shapes(plain_config(config))
    for name in [*plain, *(name for name in state if name not in shapes)]:
        yield name, _times(state[name], _factor(name, state, config))


def _factor(
    name: str, state: Mapping[str, Array], config: DecoderConfig
) -> float:
    if config.initialization == "wesar":
        alpha = state.get(name.removesuffix("weight") + ALPHA)
        return 1.0 if alpha is None else float(alpha.astype(np.float64)[0])
    if name == _EMBEDDING:
        return embedding_factor(config)
    if name == _FINAL_NORM and config.tie_word_embeddings:
        return 1 / embedding_factor(config)
    return 1.0


def _times(array: Array, factor: float) -> Array:
    if factor == 1.0:
        return array
    wide = "float64" if array.dtype == np.float64 else "float32"
    return np.multiply(array, factor, dtype=wide).astype(array.dtype)
