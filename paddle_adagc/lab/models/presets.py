# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The paper's language models at full size (table of hyper-parameters)."""

import warnings
from collections.abc import Mapping
from typing import Any

from paddle_adagc.lab.models.config import DecoderConfig

# Layers, widths, heads, experts and sequence length are the paper's. It does
# not give the rest: those values are the released models' and marked "ours".
_LLAMA2: dict[str, Any] = {
    "vocab_size": 32000,  # ours: Llama-2's tokenizer
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,  # ours: Llama-2
    "rms_norm_eps": 1e-5,  # ours: Llama-2
}

PRESETS: dict[str, dict[str, Any]] = {
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
    "qwen3-1.7b": {
        "num_hidden_layers": 28,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "vocab_size": 151936,  # ours: Qwen3's tokenizer
        "head_dim": 128,  # ours: Qwen3
        "qk_norm": True,  # ours: Qwen3
        "tie_word_embeddings": True,  # ours: Qwen3-1.7B ties its head
        "rope_theta": 1e6,  # ours: Qwen3
        "rms_norm_eps": 1e-6,  # ours: Qwen3
    },
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
        "vocab_size": 103424,  # ours: ERNIE-4.5's tokenizer
        # ours: with an untied head 1.4B values are active, as in the name
        "tie_word_embeddings": False,
        "rope_theta": 500000.0,  # ours: ERNIE-4.5
        "rope_layout": "interleaved",  # ours: ERNIE-4.5
        "rms_norm_eps": 1e-5,  # ours: ERNIE-4.5
        "moe_correction_bias": True,  # ours: ERNIE-4.5
        # ours: ERNIE-4.5's 0.001, of a loss moe_top_k times ours (see
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
        "vocab_size": 32000,  # ours: Mixtral's tokenizer
        "rope_theta": 1e6,  # ours: Mixtral
        "rms_norm_eps": 1e-5,  # ours: Mixtral
        # ours: Hugging Face's default 0.001, of a loss moe_top_k times ours
        "router_aux_loss_coef": 0.002,
    },
}


def decoder_config(fields: Mapping[str, Any], **layout: Any) -> DecoderConfig:
    """Make the decoder's config from a run's `model` section.

    Args:
        fields: Options of `DecoderConfig`; with `preset`, a key of `PRESETS`,
            they replace that preset's.
        **layout: PaddleNLP's own keys, such as `tensor_parallel_degree`.

    Raises:
        ValueError: An unknown preset or option (the nearest is named), or a
            value out of range.
    """
    config: DecoderConfig = DecoderConfig.from_fields(fields, PRESETS, **layout)
    if config.initialization != "normal" and "initializer_range" in fields:
        warnings.warn(
            f"model.initializer_range={fields['initializer_range']} is "
            f"ignored: initialization={config.initialization!r} has its own",
            stacklevel=2,
        )
    return config


def preset(name: str, **overrides: Any) -> DecoderConfig:
    """Make the config of one of the paper's language models.

    Args:
        name: Key of `PRESETS`.
        **overrides: Options that replace the preset's.

    Raises:
        ValueError: See `decoder_config`.
    """
    return decoder_config({"preset": name, **overrides})
