# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""ERNIE-4.5 with experts (Baidu 2025)."""

from typing import Any

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.families.family import (
    Family,
    Options,
    moe_layers,
    read_balance_factor,
    write_balance_factor,
)

_NORM_MIN = 1e-12


def _includes(config: DecoderConfig) -> bool:
    return config.moe_num_experts > 0 and bool(
        config.moe_correction_bias
        or config.moe_num_shared_experts
        or config.rope_layout == "interleaved"
    )


def _read_experts(config: Options) -> dict[str, Any]:
    if config.get("moe_norm_min", _NORM_MIN) != _NORM_MIN:
        raise ValueError(
            f"moe_norm_min={config['moe_norm_min']!r}: the decoder supports "
            f"{_NORM_MIN} only."
        )
    num_layers, top_k = config["num_hidden_layers"], config["moe_k"]
    first, last = config["moe_layer_start_index"], config["moe_layer_end_index"]
    end = num_layers if last == -1 else last + 1
    interval = config["moe_layer_interval"]
    layers = [i for i in range(first, end) if (i + 1) % interval == 0]
    return {
        "moe_num_experts": config["moe_num_experts"],
        "moe_top_k": top_k,
        "moe_intermediate_size": config["moe_intermediate_size"],
        "moe_num_shared_experts": config["moe_num_shared_experts"],
        "moe_layers": None if len(layers) == num_layers else layers,
        **read_balance_factor(config, top_k),
    }


def _write_experts(config: DecoderConfig) -> dict[str, Any]:
    layers = moe_layers(config)
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
        **write_balance_factor(config),
    }


# Layers, widths, heads, experts and sequence length are the paper's. The rest
# is the released model's; a comment beside it says whose.
ERNIE = Family(
    model_type="ernie4_5_moe",
    class_name="Ernie4_5_MoeForCausalLM",
    presets={
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
    },
    options={
        "rope_layout": "interleaved",
        "qk_norm": False,
        "moe_norm_topk_prob": True,
        "moe_correction_bias": True,
    },
    defaults={"tie_word_embeddings": True, "num_key_value_heads": 4},
    includes=_includes,
    read_experts=_read_experts,
    write_experts=_write_experts,
)
