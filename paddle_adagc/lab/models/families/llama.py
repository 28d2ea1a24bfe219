# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Llama (Touvron et al. 2023)."""

from typing import Any

from paddle_adagc.lab.models.families.family import Family

# Layers, widths, heads, experts and sequence length are the paper's. The rest
# is the released model's; a comment beside it says whose.
_LLAMA2: dict[str, Any] = {
    "vocab_size": 32000,  # Llama-2's tokenizer
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,  # Llama-2
    "rms_norm_eps": 1e-5,  # Llama-2
}

LLAMA = Family(
    model_type="llama",
    class_name="LlamaForCausalLM",
    presets={
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
    },
    options={"rope_layout": "half"},
    defaults={"tie_word_embeddings": False},
    includes=lambda config: config.moe_num_experts == 0,
)
