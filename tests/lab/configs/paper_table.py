# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The paper's settings, transcribed from its tables, one entry a model.

``hyper_parameters``: the table of the language models' hyper-parameters
(appendix); ``degrees``: the layouts of the table of GPU hours, which leaves
Qwen3-1.7B out; ``tokens``: the text of the section on training, as printed.

Slips in the paper: 9,000 steps of 2048 sequences of 2048 tokens are 37.7
billion tokens, printed 36 billion; so are Mixtral's 36,000 steps of 512.
"""

COMMON = {
    "precision": "bfloat16",
    "attention_bias": False,
    "learning_rate": 3e-4,
    "lr_decay": "cosine",
    "warmup_iterations": 2000,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "lambda_abs": 1.0,
    "lambda_rel": 1.04,
    "beta": 0.99,
}
"""What most of the models share."""

_COLUMNS = (
    *("num_layers", "hidden_size", "ffn_size", "num_heads"),
    *("num_key_value_heads", "sequence_length", "batch_size", "iterations"),
)
_ROWS = {
    "llama2_1.3b": (24, 2048, 5461, 32, 32, 2048, 2048, 9000),
    "llama2_7b": (32, 4096, 11008, 32, 32, 2048, 2048, 9000),
    "qwen3_1.7b": (28, 2048, 6144, 16, 8, 4096, 2048, 19000),
    "ernie_10b_a1.4b_fp8": (25, 2560, 1024, 20, 4, 4096, 4096, 21000),
    "mixtral_8x1b": (24, 2048, 5632, 32, 4, 2048, 512, 36000),
}
_OTHER = {
    "qwen3_1.7b": {"learning_rate": 4.5e-3},
    "ernie_10b_a1.4b_fp8": {
        "precision": "float8",
        "num_shared_experts": 1,
        "num_routed_experts": 48,
        "num_experts_per_token": 3,
        "lr_decay": "wsd",
    },
    "mixtral_8x1b": {
        "num_shared_experts": 0,
        "num_routed_experts": 8,
        "num_experts_per_token": 2,
        "warmup_iterations": 500,
        "beta2": 0.999,
    },
}
HYPER_PARAMETERS = {
    name: COMMON | dict(zip(_COLUMNS, row, strict=True)) | _OTHER.get(name, {})
    for name, row in _ROWS.items()
}

DEGREES = {
    "llama2_1.3b": {"dp": 256, "tp": 1, "pp": 1},
    "llama2_7b": {"dp": 32, "tp": 2, "pp": 1},
    "mixtral_8x1b": {"dp": 256, "tp": 1, "pp": 1, "ep": 1},
    "ernie_10b_a1.4b_fp8": {"dp": 64, "tp": 1, "pp": 4, "ep": 8},
}

TOKENS = {
    "llama2_1.3b": 36e9,
    "llama2_7b": 36e9,
    "qwen3_1.7b": 160e9,
    "mixtral_8x1b": 36e9,
    "ernie_10b_a1.4b_fp8": 350e9,
}

CLIP = {
    "schedule.kind": "cosine",
    "schedule.learning_rate": 0.002,
    "schedule.warmup_steps": 5000,
    "optimizer.name": "lion",
    "optimizer.weight_decay": 0.2,
    "train.max_steps": 20000,
    "global_batch": 32768,
}
"""Of the appendix "Experimental Details for CLIP"; its patch dropout is 0.5."""

T_START = 100
"""AdaGC's warm-up steps, for all models."""

EPSILON = {"adagc": 1e-15, "globalgc_eps1e-15": 1e-15, "globalgc_eps1e-8": 1e-8}
"""AdamW's epsilon, of the three rows of ERNIE's table; no other is given."""
