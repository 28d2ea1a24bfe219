# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's format: what a config.json says, and Llama's weights.

The export is the way to lm-evaluation-harness. ERNIE trained by PaddleFormers
is saved in this format by PaddleFormers itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import paddle
from paddle import nn
from safetensors.numpy import save_file

from adagc_lab.models.config import DecoderConfig

_SHARED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
)
_EXPERTS = {
    "ernie4_5_moe": {
        "moe_num_experts": "moe_num_experts",
        "moe_top_k": "moe_k",
        "moe_intermediate_size": "moe_intermediate_size",
        "moe_num_shared_experts": "moe_num_shared_experts",
    },
    "mixtral": {
        "moe_num_experts": "num_local_experts",
        "moe_top_k": "num_experts_per_tok",
        "moe_intermediate_size": "intermediate_size",
    },
    "qwen3": {},
    "llama": {},
}
"""``model_type`` -> our option -> key of its config.json."""

_LLAMA = ("qk_norm", "moe_num_experts", "tie_word_embeddings")


def config_from_hf(options: Mapping[str, Any]) -> DecoderConfig:
    """Convert a parsed config.json; a ValueError names a key that is missing.

    Windows of attention, biases and scaled rotary embeddings are not read.
    """
    kind = options.get("model_type")
    if kind not in _EXPERTS:
        raise ValueError(f"model_type={kind!r}: use one of {[*_EXPERTS]}")
    keys = {**{name: name for name in _SHARED}, **_EXPERTS[kind]}
    if missing := sorted({*keys.values()} - options.keys()):
        raise ValueError(f"config.json has no {', '.join(missing)}: add it")
    fields = {ours: options[theirs] for ours, theirs in keys.items()}
    rope = options.get("rope_parameters") or options
    if fields.get("moe_num_experts"):
        # Transformers' balancing loss is top_k times ours (see
        # moe.load_balancing_loss).
        factor = options.get("router_aux_loss_coef", 0.001)
        factor *= fields["moe_top_k"]
        fields["router_aux_loss_coef"] = float(f"{factor:.15g}")
    is_ernie = kind == "ernie4_5_moe"
    return DecoderConfig(
        **fields,
        rope_theta=rope.get("rope_theta", 10000.0),
        head_dim=options.get("head_dim"),
        tie_word_embeddings=options.get("tie_word_embeddings", False),
        initializer_range=options.get("initializer_range", 0.02),
        qk_norm=kind == "qwen3",
        rope_layout="interleaved" if is_ernie else "half",
        moe_correction_bias=is_ernie,
    )


def export_llama(model: nn.Layer, directory: Path) -> int:
    """Write a decoder as transformers' ``LlamaForCausalLM``; count its tensors.

    Every tensor keeps its dtype. ``directory`` must be new.
    """
    config = model.config
    for name in _LLAMA:
        if getattr(config, name):
            raise ValueError(
                f"{name}={getattr(config, name)}: only Llama models are "
                "exported"
            )
    if (config.rope_layout, config.initialization) != ("half", "normal"):
        raise ValueError(
            f"rope_layout={config.rope_layout!r}, initialization="
            f"{config.initialization!r}: transformers' Llama has neither"
        )
    weights = {
        name: _transposed(name, _to_numpy(tensor))
        for name, tensor in model.state_dict().items()
    }
    directory.mkdir(parents=True)
    options = {
        **{name: getattr(config, name) for name in (*_SHARED, "head_dim")},
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_theta": config.rope_theta,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": False,
        "torch_dtype": weights["lm_head.weight"].dtype.name,
    }
    (directory / "config.json").write_text(json.dumps(options, indent=1))
    path = directory / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    return len(weights)


def _to_numpy(tensor: paddle.Tensor) -> np.ndarray:
    """Convert a tensor; Paddle gives bfloat16's bits as integers."""
    array = tensor.numpy()
    if tensor.dtype == paddle.bfloat16:
        return array.view(ml_dtypes.bfloat16)
    return array


def _transposed(name: str, array: np.ndarray) -> np.ndarray:
    """Turn linear maps from [in, out] to transformers' [out, in]."""
    is_map = array.ndim == 2 and "embed_tokens" not in name
    return np.ascontiguousarray(array.T if is_map else array)
