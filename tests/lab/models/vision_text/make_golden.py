# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write golden/clip_*.npz: logits of Hugging Face's CLIP, and its tokens.

Tiny models with random weights; each file holds the checkpoint
("weight:<name>"), the config as JSON ("config"), inputs and logits. PyTorch is
not needed to use or to test the package: ``tests/lab/models/make_golden.py``
has the environment for this script.
"""

import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from tokenizers.processors import RobertaProcessing
from tokenizers.trainers import BpeTrainer
from transformers import CLIPConfig, CLIPModel, CLIPTokenizerFast

GOLDEN = Path(__file__).parent / "golden"
CAPTIONS = (
    "A photo of a large red circle!",
    "two  Dogs, 3 cats' toys & a déjà-vu",
    "circle circle circle circle circle circle circle circle circle circle",
    "",
)
CONTEXT = 12


def make_model(activation: str, end_token: int) -> CLIPModel:
    """A model whose parameters all differ from their usual start."""
    text = {
        "vocab_size": 40,
        "hidden_size": 12,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 10,
        "hidden_act": activation,
        "eos_token_id": end_token,
    }
    vision = {
        "image_size": 12,
        "patch_size": 4,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_act": activation,
    }
    config = CLIPConfig(
        text_config=text, vision_config=vision, projection_dim=10
    )
    model = CLIPModel(config).eval()
    for name, parameter in model.named_parameters():
        if name != "logit_scale":
            centre = float("norm" in name and name.endswith("weight"))
            parameter.data = centre + 0.3 * torch.randn_like(parameter)
    return model


def write_model(name: str, activation: str, end_token: int) -> None:
    """One model's file."""
    model = make_model(activation, end_token)
    pixels = torch.randn(3, 3, 12, 12)
    ids = torch.randint(3, 39, (4, 10))
    last = 39 if end_token == 2 else end_token
    ids[ids == last] = 4
    for row, place in enumerate((9, 4, 1, 6)):
        ids[row, place] = last
    with torch.no_grad():
        logits = model(input_ids=ids, pixel_values=pixels).logits_per_image
    np.savez_compressed(
        GOLDEN / f"{name}.npz",
        config=json.dumps(model.config.to_dict()),
        pixel_values=pixels.numpy(),
        input_ids=ids.numpy(),
        logits=logits.numpy(),
        **{f"weight:{k}": v.numpy() for k, v in model.state_dict().items()},
    )


def write_tokenizer() -> None:
    """A small tokenizer.json of CLIP's kind, and what transformers makes."""
    tokenizer = Tokenizer(
        models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Lowercase(),
        ]
    )
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|startoftext|>", "<|endoftext|>"]
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        end_of_word_suffix="</w>",
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    letters = [" ".join(caption) for caption in CAPTIONS]
    tokenizer.train_from_iterator([*CAPTIONS[:2], *letters] * 4, trainer)
    start, end = (tokenizer.token_to_id(token) for token in special)
    tokenizer.post_processor = RobertaProcessing(
        (special[1], end), (special[0], start), add_prefix_space=False
    )
    path = GOLDEN / "tokenizer.json"
    tokenizer.save(str(path), pretty=False)
    theirs = CLIPTokenizerFast(tokenizer_file=str(path))
    rows = theirs(
        list(CAPTIONS), truncation=True, max_length=CONTEXT, padding=False
    )["input_ids"]
    (GOLDEN / "tokens.json").write_text(
        json.dumps({"captions": CAPTIONS, "context": CONTEXT, "rows": rows})
    )


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    torch.manual_seed(0)
    write_model("clip_quick_gelu", "quick_gelu", end_token=2)
    write_model("clip_gelu", "gelu", end_token=7)
    write_tokenizer()
