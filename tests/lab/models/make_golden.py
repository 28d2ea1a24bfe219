# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make the golden files of both `test_hf.py` with Hugging Face transformers.

Tiny models with random weights; each file holds the checkpoint in the hub's
naming ("weight:<name>"), the config as JSON ("config"), the inputs and the
logits ("logits"). PyTorch is not needed to use or to test the package, so this
script has an environment of its own:

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
    CLIPConfig,
    CLIPModel,
    CLIPTokenizerFast,
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

FOLDER = Path(__file__).parent
CLIP_FOLDER = FOLDER / "vision_text" / "golden"
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
            moe_layer_start_index=0,
            tie_word_embeddings=False,
        ),
    ),
}


CAPTIONS = (
    "A photo of a large red circle!",
    "two  Dogs, 3 cats' toys & a déjà-vu",
    "circle circle circle circle circle circle circle circle circle circle",
    "",
)
CONTEXT = 12


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


def write(path: Path, model: PreTrainedModel, logits: str, **inputs) -> None:
    """Write a model's file; `logits` is their name in its output."""
    with torch.no_grad():
        found = model(**inputs)[logits]
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        weights = load_file(Path(saved) / "model.safetensors")
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(
        path,
        config=json.dumps(model.config.to_dict()),
        logits=found.numpy(),
        **{name: value.numpy() for name, value in inputs.items()},
        **{f"weight:{key}": value for key, value in weights.items()},
    )


def write_decoders() -> None:
    """Write golden/*.npz."""
    for seed, (name, (kind, config)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = kind(config).eval()
        randomise(model)
        ids = torch.randint(0, config.vocab_size, (2, 17))
        write(FOLDER / f"golden/{name}.npz", model, "logits", input_ids=ids)


def write_clip() -> None:
    """Write vision_text/golden/clip.npz."""
    torch.manual_seed(0)
    text = {
        "vocab_size": 40,
        "hidden_size": 12,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 10,
        "hidden_act": "gelu",
        "eos_token_id": 39,
    }
    vision = {
        "image_size": 12,
        "patch_size": 4,
        "hidden_size": 8,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_act": "gelu",
    }
    model = CLIPModel(
        CLIPConfig(text_config=text, vision_config=vision, projection_dim=10)
    ).eval()
    for name, parameter in model.named_parameters():
        if name != "logit_scale":
            centre = float("norm" in name and name.endswith("weight"))
            parameter.data = centre + 0.3 * torch.randn_like(parameter)
    ids = torch.randint(3, 39, (4, 10))
    for row, place in enumerate((9, 4, 1, 6)):
        ids[row, place] = 39
    pixels = torch.randn(3, 3, 12, 12)
    inputs = {"pixel_values": pixels, "input_ids": ids}
    write(CLIP_FOLDER / "clip.npz", model, "logits_per_image", **inputs)


def write_tokens() -> None:
    """Write what transformers makes of captions by the tokenizer.json there."""
    path = CLIP_FOLDER / "tokenizer.json"
    rows = CLIPTokenizerFast(tokenizer_file=str(path))(
        list(CAPTIONS), truncation=True, max_length=CONTEXT, padding=False
    )["input_ids"]
    (CLIP_FOLDER / "tokens.json").write_text(
        json.dumps({"captions": CAPTIONS, "context": CONTEXT, "rows": rows})
    )


if __name__ == "__main__":
    write_decoders()
    write_clip()
    write_tokens()
