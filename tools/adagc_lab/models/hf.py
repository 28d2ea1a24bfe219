# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Our decoder and Hugging Face transformers: config keys, names, layouts."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.hf_files import Array
from adagc_lab.models.hf_keys import (
    FAMILIES,
    MAX_COUNT,
    Family,
    read_facts,
)
from adagc_lab.models.shapes import CORRECTION_BIAS, state_shapes

_ROTARY = ".rotary_emb.inv_freq"
_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_WRITTEN = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
    "sliding_window": None,
}
# Options without a counterpart in transformers: value without, rounding.
_LEFT_OUT: dict[str, tuple[Any, str]] = {
    "float8_linears": ([], "FP8"),
    "rms_norm_precision": ("float32", "bfloat16"),
}
_MAX_EXPERTS = 30_000  # in all layers; names and shapes take 600 MB


def config_from_hf(
    options: Mapping[str, Any], *, source: Any = None
) -> DecoderConfig:
    """Convert a parsed `config.json`, or refuse it with a ValueError.

    `source` is the file, for messages; with it, a warning names keys of which
    nothing is known.
    """
    try:
        family = _family_named(options.get("model_type"))
        fields = read_facts(options, family)
        if "router_aux_loss_coef" in fields:
            # Transformers' balancing loss is `top_k` times ours (see
            # `moe.load_balancing_loss`). With 15 digits the factor comes back.
            factor = fields["router_aux_loss_coef"] * fields["moe_top_k"]
            fields["router_aux_loss_coef"] = float(f"{factor:.15g}")
        config = DecoderConfig(**fields, **family.options)
        check_counts(config)
    except (RecursionError, TypeError, ValueError) as error:
        where = f"{source}: " if source else ""
        raise ValueError(f"{where}{error}") from error
    unknown = family.unknown_keys(options)
    if source is not None and unknown:
        warnings.warn(
            f"{source}: nothing is known of {', '.join(unknown)}: the decoder "
            "is made without",
            stacklevel=2,
        )
    return config


def _family_named(model_type: Any) -> Family:
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"model_type={model_type!r}: use one of {sorted(FAMILIES)}"
        )
    return FAMILIES[model_type]


def check_counts(config: DecoderConfig) -> None:
    """Refuse a file's config whose names and shapes would fill the memory."""
    layers, experts = config.num_hidden_layers, config.moe_num_experts
    if layers > MAX_COUNT or layers * experts > _MAX_EXPERTS:
        raise ValueError(
            f"num_hidden_layers={layers} with {experts} experts each: at most "
            f"{MAX_COUNT:,} layers and {_MAX_EXPERTS:,} experts in all are "
            "read, lower one."
        )


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
    values = {
        fact.keys[0]: getattr(config, name)
        for name, fact in family.facts.items()
    }
    if config.moe_num_experts:
        factor = config.router_aux_loss_coef / config.moe_top_k
        values["router_aux_loss_coef"] = factor
    return {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        **values,
        **_WRITTEN,
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        **family.written,
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

    Raises:
        ValueError: The head is not what `tie_word_embeddings` says.
    """
    family = family_of(config)
    ours = {_hf_name(name, family): name for name in state_shapes(config)}
    is_tied = config.tie_word_embeddings
    _check_head(weights, is_tied)
    state = {}
    for theirs, array in weights.items():
        if theirs.endswith(_ROTARY) or (theirs == _HEAD and is_tied):
            continue
        name = ours.get(theirs, theirs)
        if name.endswith(CORRECTION_BIAS):
            array = array.reshape(-1)
        state[name] = np.ascontiguousarray(_transposed(name, array))
    return state


def _check_head(weights: Mapping[str, Array], is_tied: bool) -> None:
    """Refuse a head that is, or is not, there in spite of the config."""
    embedding, head = weights.get(_EMBEDDING), weights.get(_HEAD)
    if embedding is None:
        return
    if is_tied and head is not None and not np.array_equal(embedding, head):
        raise ValueError(
            f"tie_word_embeddings=true, but {_HEAD} differs from {_EMBEDDING}: "
            "write false into config.json, or leave the tensor out"
        )
    if not is_tied and head is None:
        raise ValueError(
            f"tie_word_embeddings=false, but the weights hold no {_HEAD}: "
            "write true into config.json if the model has one matrix for both"
        )


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
