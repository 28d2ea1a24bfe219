# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mixtral (Jiang et al. 2024)."""

from typing import Any

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.families.family import (
    Family,
    Options,
    moe_layers,
    read_balance_factor,
    write_balance_factor,
)

_EXPERT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def _read_experts(config: Options) -> dict[str, Any]:
    top_k = config["num_experts_per_tok"]
    return {
        "moe_num_experts": config["num_local_experts"],
        "moe_top_k": top_k,
        **read_balance_factor(config, top_k),
    }


def _write_experts(config: DecoderConfig) -> dict[str, Any]:
    if len(moe_layers(config)) < config.num_hidden_layers:
        raise ValueError(
            f"moe_layers={config.moe_layers!r}: transformers' Mixtral has "
            "experts in every layer; such a model cannot be exported."
        )
    return {
        "intermediate_size": config.moe_intermediate_size,
        "num_local_experts": config.moe_num_experts,
        "num_experts_per_tok": config.moe_top_k,
        **write_balance_factor(config),
    }


def _tensor_name(name: str) -> str:
    if ".mlp." not in name:
        return name
    name = name.replace(".mlp.", ".block_sparse_moe.")
    for ours, theirs in _EXPERT.items():
        name = name.replace(f".{ours}.", f".{theirs}.")
    return name


# Layers, widths, heads, experts and sequence length are the paper's. The rest
# is the released model's; a comment beside it says whose.
MIXTRAL = Family(
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    presets={
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
    },
    options={
        "rope_layout": "half",
        "qk_norm": False,
        "moe_norm_topk_prob": True,
    },
    defaults={"tie_word_embeddings": False, "num_key_value_heads": 8},
    includes=lambda config: config.moe_num_experts > 0,
    read_experts=_read_experts,
    write_experts=_write_experts,
    tensor_name=_tensor_name,
)
