# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tiny decoders of all families: the paper's presets with small sizes."""

import paddle
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.models.families import decoder_config

_SIZES = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
_EXPERTS = {**_SIZES, "moe_num_experts": 6, "moe_top_k": 3}
TINY = {
    "llama": {**_SIZES, "preset": "llama2-1.3b", "num_key_value_heads": 4},
    "qwen3": {**_SIZES, "preset": "qwen3-1.7b", "head_dim": 16},
    "mixtral": {**_EXPERTS, "preset": "mixtral-8x1b"},
    "ernie4_5_moe": {
        **_EXPERTS,
        "preset": "ernie-10b-a1.4b",
        "moe_intermediate_size": 20,
        "moe_num_shared_experts": 2,
    },
}
"""``model`` section of a run by transformers' ``model_type``."""


def build(family, seed=0, **options):
    """Build a tiny decoder."""
    paddle.seed(seed)
    config = decoder_config({**TINY[family], **options})
    return DecoderForCausalLM(config)
