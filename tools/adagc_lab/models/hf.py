# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Our decoder and Hugging Face transformers: config keys, names, layouts."""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.shapes import CORRECTION_BIAS, state_shapes

Array = npt.NDArray[np.generic]


class Family(NamedTuple):
    """Decoders that transformers has a class for."""

    model_type: str  # `model_type` in transformers' config.json
    class_name: str  # class of transformers
    options: Mapping[str, Any]
    """`DecoderConfig` options that all models of the family share and that
    transformers does not store."""

    defaults: Mapping[str, Any]
    """Keys of config.json that may be missing, with what transformers then
    assumes."""

    expert_keys: Mapping[str, str] = {}  # our option -> key of config.json
    fixed: Mapping[str, Any] = {}  # keys of which one value is supported
    names: Mapping[str, str] = {}  # part of our tensors' names -> of theirs


_ALL = (
    Family(  # with experts (Baidu 2025)
        model_type="ernie4_5_moe",
        class_name="Ernie4_5_MoeForCausalLM",
        options={
            "rope_layout": "interleaved",
            "qk_norm": False,
            "moe_correction_bias": True,
        },
        defaults={
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "moe_layer_start_index": 1,
        },
        expert_keys={
            "moe_num_experts": "moe_num_experts",
            "moe_top_k": "moe_k",
            "moe_intermediate_size": "moe_intermediate_size",
            "moe_num_shared_experts": "moe_num_shared_experts",
        },
        fixed={
            "moe_layer_start_index": 0,  # every layer has experts
            "moe_layer_interval": 1,
            "moe_norm_min": 1e-12,
        },
        names={f".{CORRECTION_BIAS}": f".moe_statics.{CORRECTION_BIAS}"},
    ),
    Family(  # Jiang et al. 2024
        model_type="mixtral",
        class_name="MixtralForCausalLM",
        options={"rope_layout": "half", "qk_norm": False},
        defaults={"tie_word_embeddings": False, "num_key_value_heads": 8},
        expert_keys={
            "moe_num_experts": "num_local_experts",
            "moe_top_k": "num_experts_per_tok",
            "moe_intermediate_size": "intermediate_size",
        },
        names={
            ".mlp.": ".block_sparse_moe.",
            ".gate_proj.": ".w1.",
            ".up_proj.": ".w3.",
            ".down_proj.": ".w2.",
        },
    ),
    Family(  # without experts (Yang et al. 2025)
        model_type="qwen3",
        class_name="Qwen3ForCausalLM",
        options={"rope_layout": "half", "qk_norm": True},
        defaults={"tie_word_embeddings": False, "head_dim": 128},
    ),
    Family(  # Touvron et al. 2023
        model_type="llama",
        class_name="LlamaForCausalLM",
        options={"rope_layout": "half"},
        defaults={"tie_word_embeddings": False},
    ),
)
FAMILIES = {family.model_type: family for family in _ALL}
"""Family by transformers' `model_type`."""

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
_MAX_COUNT = 1000  # of layers, and of experts in one
_MAX_EXPERTS = 30_000  # in all layers; names and shapes take 600 MB


def config_from_hf(options: Mapping[str, Any]) -> DecoderConfig:
    """Convert a parsed `config.json`, or refuse it with a ValueError."""
    model_type = options.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"model_type={model_type!r}: use one of {sorted(FAMILIES)}."
        )
    family = FAMILIES[model_type]
    options = {**family.defaults, **options}
    for key, value in {**_FIXED, **family.fixed}.items():
        if options.get(key, value) != value:
            raise ValueError(
                f"{key}={options[key]!r}: the decoder supports {value!r} only."
            )
    for key in (*_SHARED_KEYS, *family.expert_keys.values()):
        is_count = key == "num_hidden_layers" or "experts" in key
        limit = _MAX_COUNT if is_count else _MAX_SIZE
        value = options.get(key)
        if isinstance(value, (int, float)) and not 0 <= value <= limit:
            raise ValueError(f"{key}={value}: not in [0, {limit}].")
    try:
        fields = {
            key: options[key]
            for key in _SHARED_KEYS
            if key in options or key not in _OPTIONAL_KEYS
        }
        for name, key in family.expert_keys.items():
            fields[name] = options[key]
        if family.expert_keys:
            # Transformers' balancing loss is `top_k` times ours (see
            # `moe.load_balancing_loss`). With 15 digits the factor comes back.
            factor = options["router_aux_loss_coef"] * fields["moe_top_k"]
            fields["router_aux_loss_coef"] = float(f"{factor:.15g}")
    except KeyError as error:
        raise ValueError(
            f"The config holds no {error.args[0]}: add it."
        ) from error
    config = DecoderConfig(
        **fields, rope_theta=_rope_theta(options), **family.options
    )
    check_counts(config)
    end = options.get("moe_layer_end_index", -1)
    if family.fixed and end not in (-1, config.num_hidden_layers - 1):
        raise ValueError(
            f"moe_layer_end_index={end!r}: the decoder has experts in every "
            "layer."
        )
    return config


def check_counts(config: DecoderConfig) -> None:
    """Refuse a file's config whose names and shapes would fill the memory."""
    layers, experts = config.num_hidden_layers, config.moe_num_experts
    if layers > _MAX_COUNT or layers * experts > _MAX_EXPERTS:
        raise ValueError(
            f"num_hidden_layers={layers} with {experts} experts each: at most "
            f"{_MAX_COUNT:,} layers and {_MAX_EXPERTS:,} experts in all are "
            "read, lower one."
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
    name = "qwen3" if config.qk_norm else "llama"
    if config.moe_num_experts:
        is_ernie = (
            config.moe_correction_bias
            or config.moe_num_shared_experts
            or config.rope_layout == "interleaved"
        )
        name = "ernie4_5_moe" if is_ernie else "mixtral"
    family = FAMILIES[name]
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
    experts = {
        key: getattr(config, name) for name, key in family.expert_keys.items()
    }
    if experts:
        factor = config.router_aux_loss_coef / config.moe_top_k
        experts["router_aux_loss_coef"] = factor
    return {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        **{key: getattr(config, key) for key in _SHARED_KEYS},
        **_FIXED,
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        **family.fixed,
        **experts,
    }


def _hf_name(name: str, family: Family) -> str:
    for ours, theirs in family.names.items():
        name = name.replace(ours, theirs)
    return name


def _transposed(name: str, array: Array) -> Array:
    """Turn matrices around: ours are [in, out], the checkpoint's [out, in]."""
    is_map = array.ndim == 2 and "embed_tokens" not in name
    return array.T if is_map else array


def state_from_hf(
    weights: Mapping[str, Array], config: DecoderConfig
) -> dict[str, Array]:
    """Convert a checkpoint's arrays to a state dict of `DecoderForCausalLM`.

    Unknown names stay as they are. Like transformers, it leaves out a stored
    copy of a tied head and the rotary frequencies of old Llama checkpoints.
    """
    family = family_of(config)
    ours = {_hf_name(name, family): name for name in state_shapes(config)}
    is_copy = (
        config.tie_word_embeddings
        and {_EMBEDDING, _HEAD} <= weights.keys()
        and np.array_equal(weights[_EMBEDDING], weights[_HEAD])
    )
    state = {}
    for theirs, array in weights.items():
        if theirs.endswith(_ROTARY) or (theirs == _HEAD and is_copy):
            continue
        name = ours.get(theirs, theirs)
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
