# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Families of decoders: the paper's models, and transformers' classes."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from paddle_adagc.lab.models.config import DecoderConfig

Options = Mapping[str, Any]

_LLAMA2: Options = {
    "vocab_size": 32000,  # Llama-2's tokenizer
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,  # Llama-2
    "rms_norm_eps": 1e-5,  # Llama-2
}
# Layers, widths, heads, experts and sequence length are the paper's. The rest
# is the released model's; a comment beside it says whose.
PRESETS: dict[str, Options] = {
    "ernie-10b-a1.4b": {
        "num_hidden_layers": 25,
        "hidden_size": 2560,
        "intermediate_size": 1024,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "moe_num_experts": 48,
        "moe_num_shared_experts": 1,
        "moe_top_k": 3,
        "max_position_embeddings": 4096,
        "vocab_size": 103424,  # ERNIE-4.5's tokenizer
        # With an untied head 1.4B values are active, as in the name
        "tie_word_embeddings": False,
        "rope_theta": 500000.0,  # ERNIE-4.5
        "rope_layout": "interleaved",  # ERNIE-4.5
        "rms_norm_eps": 1e-5,  # ERNIE-4.5
        "moe_correction_bias": True,  # ERNIE-4.5
        # ERNIE-4.5's 0.001, of a loss moe_top_k times ours (see
        # moe.load_balancing_loss)
        "router_aux_loss_coef": 0.003,
    },
    "mixtral-8x1b": {
        "num_hidden_layers": 24,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "moe_num_experts": 8,
        "moe_top_k": 2,
        "max_position_embeddings": 2048,
        "vocab_size": 32000,  # Mixtral's tokenizer
        "rope_theta": 1e6,  # Mixtral
        "rms_norm_eps": 1e-5,  # Mixtral
        # Hugging Face's default 0.001, of a loss moe_top_k times ours
        "router_aux_loss_coef": 0.002,
    },
    "qwen3-1.7b": {
        "num_hidden_layers": 28,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "vocab_size": 151936,  # Qwen3's tokenizer
        "head_dim": 128,  # Qwen3
        "qk_norm": True,  # Qwen3
        "tie_word_embeddings": True,  # Qwen3-1.7B ties its head
        "rope_theta": 1e6,  # Qwen3
        "rms_norm_eps": 1e-6,  # Qwen3
    },
    "llama2-1.3b": {
        **_LLAMA2,
        "num_hidden_layers": 24,
        "hidden_size": 2048,
        "intermediate_size": 5461,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    "llama2-7b": {
        **_LLAMA2,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
}
"""`DecoderConfig` options of the paper's models at full size, by name."""


def decoder_config(fields: Options, **layout: Any) -> DecoderConfig:
    """Make the config of a run's `model` section, see `from_fields`."""
    config: DecoderConfig = DecoderConfig.from_fields(fields, PRESETS, **layout)
    if config.initialization != "normal" and "initializer_range" in fields:
        warnings.warn(
            f"model.initializer_range={fields['initializer_range']} is "
            f"ignored: initialization={config.initialization!r} has its own",
            stacklevel=2,
        )
    return config


def preset(name: str, **overrides: Any) -> DecoderConfig:
    """Make the config of a model of `PRESETS`, with some options replaced."""
    return decoder_config({"preset": name, **overrides})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A family of decoders that transformers has a class for."""

    model_type: str
    """`model_type` in transformers' config.json."""

    class_name: str
    """Class of transformers."""

    options: Options
    """`DecoderConfig` options that all models of the family share and that
    transformers does not store."""

    defaults: Options
    """Keys of config.json that may be missing, with what transformers then
    assumes."""

    includes: Callable[[DecoderConfig], bool]
    """Whether the family is the nearest one to a decoder. The first family of
    `FAMILIES` that says so is taken."""

    expert_keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """`DecoderConfig` option of the experts -> key of config.json."""

    read_layers: Callable[[Options], Options] = lambda config: {}
    """`DecoderConfig` option of the layers with experts, from a config.json."""

    write_layers: Callable[[DecoderConfig], Options] = lambda config: {}
    """Keys of config.json for these layers; refuses layers without a key."""

    tensor_name: Callable[[str], str] = lambda name: name
    """Name of a tensor in transformers from our name."""

    def read_experts(self, config: Options) -> dict[str, Any]:
        """Return the `DecoderConfig` options of a config.json's experts."""
        if not self.expert_keys:
            return {}
        options = {ours: config[key] for ours, key in self.expert_keys.items()}
        # Transformers' balancing loss is `top_k` times ours (see
        # `moe.load_balancing_loss`). With 15 digits the factor comes back.
        factor = config["router_aux_loss_coef"] * options["moe_top_k"]
        options["router_aux_loss_coef"] = float(f"{factor:.15g}")
        return {**options, **self.read_layers(config)}

    def write_experts(self, config: DecoderConfig) -> dict[str, Any]:
        """Return the keys of config.json for the experts."""
        if not self.expert_keys:
            return {}
        factor = config.router_aux_loss_coef / config.moe_top_k
        keys = {
            k: getattr(config, ours) for ours, k in self.expert_keys.items()
        }
        keys["router_aux_loss_coef"] = factor
        return {**keys, **self.write_layers(config)}


_ERNIE_NORM_MIN = 1e-12


def _is_ernie(config: DecoderConfig) -> bool:
    return config.moe_num_experts > 0 and bool(
        config.moe_correction_bias
        or config.moe_num_shared_experts
        or config.rope_layout == "interleaved"
    )


def _read_ernie_layers(config: Options) -> Options:
    if config.get("moe_norm_min", _ERNIE_NORM_MIN) != _ERNIE_NORM_MIN:
        raise ValueError(
            f"moe_norm_min={config['moe_norm_min']!r}: the decoder supports "
            f"{_ERNIE_NORM_MIN} only."
        )
    num_layers = config["num_hidden_layers"]
    first, last = config["moe_layer_start_index"], config["moe_layer_end_index"]
    end = num_layers if last == -1 else last + 1
    interval = config["moe_layer_interval"]
    layers = [i for i in range(first, end) if (i + 1) % interval == 0]
    return {"moe_layers": None if len(layers) == num_layers else layers}


def _write_ernie_layers(config: DecoderConfig) -> Options:
    layers = config.layers_with_experts
    between = range(layers[0], layers[-1] + 1) if layers else range(0)
    for interval in range(1, config.num_hidden_layers + 1):
        if layers and layers == [i for i in between if (i + 1) % interval == 0]:
            return {
                "moe_layer_start_index": layers[0],
                "moe_layer_end_index": layers[-1],
                "moe_layer_interval": interval,
                "moe_norm_min": _ERNIE_NORM_MIN,
            }
    raise ValueError(
        f"moe_layers={config.moe_layers!r}: transformers' ERNIE-4.5 has "
        "experts in every n-th layer of a range; such a model cannot be "
        "exported."
    )


def _write_mixtral_layers(config: DecoderConfig) -> Options:
    if len(config.layers_with_experts) < config.num_hidden_layers:
        raise ValueError(
            f"moe_layers={config.moe_layers!r}: transformers' Mixtral has "
            "experts in every layer; such a model cannot be exported."
        )
    return {}


_MIXTRAL_NAMES = {
    ".mlp.": ".block_sparse_moe.",
    ".gate_proj.": ".w1.",
    ".up_proj.": ".w3.",
    ".down_proj.": ".w2.",
}


def _mixtral_name(name: str) -> str:
    for ours, theirs in _MIXTRAL_NAMES.items():
        name = name.replace(ours, theirs)
    return name


_ALL = (
    Family(  # with experts (Baidu 2025)
        model_type="ernie4_5_moe",
        class_name="Ernie4_5_MoeForCausalLM",
        options={
            "rope_layout": "interleaved",
            "qk_norm": False,
            "moe_correction_bias": True,
        },
        defaults={"tie_word_embeddings": True, "num_key_value_heads": 4},
        includes=_is_ernie,
        expert_keys={
            "moe_num_experts": "moe_num_experts",
            "moe_top_k": "moe_k",
            "moe_intermediate_size": "moe_intermediate_size",
            "moe_num_shared_experts": "moe_num_shared_experts",
        },
        read_layers=_read_ernie_layers,
        write_layers=_write_ernie_layers,
    ),
    Family(  # Jiang et al. 2024
        model_type="mixtral",
        class_name="MixtralForCausalLM",
        options={"rope_layout": "half", "qk_norm": False},
        defaults={"tie_word_embeddings": False, "num_key_value_heads": 8},
        includes=lambda config: config.moe_num_experts > 0,
        expert_keys={
            "moe_num_experts": "num_local_experts",
            "moe_top_k": "num_experts_per_tok",
            "moe_intermediate_size": "intermediate_size",
        },
        write_layers=_write_mixtral_layers,
        tensor_name=_mixtral_name,
    ),
    Family(  # without experts (Yang et al. 2025)
        model_type="qwen3",
        class_name="Qwen3ForCausalLM",
        options={"rope_layout": "half", "qk_norm": True},
        defaults={"tie_word_embeddings": False, "head_dim": 128},
        includes=lambda config: config.moe_num_experts == 0 and config.qk_norm,
    ),
    Family(  # Touvron et al. 2023
        model_type="llama",
        class_name="LlamaForCausalLM",
        options={"rope_layout": "half"},
        defaults={"tie_word_embeddings": False},
        includes=lambda config: config.moe_num_experts == 0,
    ),
)
FAMILIES = {family.model_type: family for family in _ALL}
"""Family by transformers' `model_type`; the more special ones come first."""
