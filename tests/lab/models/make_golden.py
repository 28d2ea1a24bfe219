# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make the golden files of `test_hf.py` with Hugging Face transformers.

Tiny models with random weights; each file holds the checkpoint in the hub's
naming ("weight:<name>"), the config as JSON ("config"), tokens ("input_ids")
and the logits ("logits"). PyTorch is not needed to use or to test the
package, so this script has an environment of its own:

    python3.11 -m venv torch-env
    torch-env/bin/pip install torch==2.13.0 transformers==5.23.0 safetensors
    torch-env/bin/python tests/lab/models/make_golden.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import (
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
MODELS = {
    "llama": (
        LlamaForCausalLM,
        LlamaConfig(**COMMON, intermediate_size=44, num_key_value_heads=4),
    ),
    "qwen3": (
        Qwen3ForCausalLM,
        Qwen3Config(
            **COMMON,
            intermediate_size=44,
            num_key_value_heads=2,
            head_dim=16,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        ),
    ),
    "mixtral": (
        MixtralForCausalLM,
        MixtralConfig(
            **COMMON,
            intermediate_size=28,
            num_key_value_heads=2,
            num_local_experts=4,
        ),
    ),
    "ernie4_5_moe": (
        Ernie4_5_MoeForCausalLM,
        Ernie4_5_MoeConfig(
            **COMMON,
            intermediate_size=44,
            moe_intermediate_size=20,
            num_key_value_heads=2,
            moe_num_experts=6,
            moe_k=3,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            tie_word_embeddings=False,
        ),
    ),
}


def randomise(model: PreTrainedModel) -> None:
    """Give the parameters that start constant random values as well."""
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "norm" in name:
            parameter.data = 1.0 + 0.2 * noise
        elif name.endswith("e_score_correction_bias"):
            parameter.data = 0.2 * noise
        elif name.endswith("gate.weight"):
            parameter.data = 0.3 * noise


def main() -> None:
    """Write one file per model beside this script."""
    folder = Path(__file__).parent / "golden"
    folder.mkdir(exist_ok=True)
    for seed, (name, (kind, config)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = kind(config).eval()
        randomise(model)
        ids = torch.randint(0, config.vocab_size, (2, 17))
        with torch.no_grad():
            logits = model(ids).logits
        with tempfile.TemporaryDirectory() as saved:
            model.save_pretrained(saved)
            weights = load_file(Path(saved) / "model.safetensors")
            options = json.loads((Path(saved) / "config.json").read_text())
        np.savez_compressed(
            folder / f"{name}.npz",
            config=json.dumps(options),
            input_ids=ids.numpy(),
            logits=logits.numpy(),
            **{f"weight:{key}": value for key, value in weights.items()},
        )


if __name__ == "__main__":
    main()
