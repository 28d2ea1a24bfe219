# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The paper's decoders as presets, and decoders by a run's config."""

import warnings
from collections.abc import Mapping
from typing import Any

from adagc_lab.models.config import DecoderConfig

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
