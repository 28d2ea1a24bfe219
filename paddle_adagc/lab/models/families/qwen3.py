# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Qwen3 without experts (Yang et al. 2025)."""

from paddle_adagc.lab.models.families.family import Family

# Layers, widths, heads, experts and sequence length are the paper's. The rest
# is the released model's; a comment beside it says whose.
QWEN3 = Family(
    model_type="qwen3",
    class_name="Qwen3ForCausalLM",
    presets={
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
    },
    options={"rope_layout": "half", "qk_norm": True},
    defaults={"tie_word_embeddings": False, "head_dim": 128},
    includes=lambda config: config.moe_num_experts == 0 and config.qk_norm,
)
