# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tiny trained decoders of every exported kind, and the commands."""

from pathlib import Path

import pytest
from pages import load_tool

from paddle_adagc.lab.train.parse import parse_config
from paddle_adagc.lab.train.run import run_pretraining

ROOT = Path(__file__).parents[3]
SMALL = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
EXPERTS = {
    "num_key_value_heads": 2,
    "moe_num_experts": 6,
    "moe_intermediate_size": 20,
    "moe_top_k": 3,
    "router_aux_loss_coef": 0.003,
}
MODELS = {
    "llama": SMALL,
    "qwen3": {
        **SMALL,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "qk_norm": True,
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
    },
    # Mixtral's only feed-forward networks are the experts.
    "mixtral": {**SMALL, **EXPERTS, "intermediate_size": 20},
    "ernie4_5_moe": {
        **SMALL,
        **EXPERTS,
        "moe_num_shared_experts": 2,
        "moe_correction_bias": True,
        "rope_layout": "interleaved",
        "rope_theta": 500000.0,
    },
}


def train(family, output_dir):
    """Train a few steps; every expert bias has moved by then."""
    config = {
        "model": dict(MODELS[family]),
        "data": {"seq_length": 24, "validation_size": 8},
        "schedule": {"learning_rate": 0.01},
        "clip": {"name": "adagc", "t_start": 2},
        "train": {
            "output_dir": str(output_dir),
            "max_steps": 4,
            "batch_size": 4,
            "save_every": 2,
            "keep_checkpoints": 2,
            "expert_bias_rate": 0.05 * (family == "ernie4_5_moe"),
            "visualdl": False,
        },
    }
    assert run_pretraining(parse_config(config)) == "finished"
    return output_dir


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """By family, the directory of a run; not to be written into."""
    folder = tmp_path_factory.mktemp("runs")
    made = {}

    def run(family):
        if family not in made:
            made[family] = train(family, folder / family)
        return made[family]

    return run


@pytest.fixture
def command(monkeypatch):
    """The `main` of a command, run from the root of the repository."""
    monkeypatch.chdir(ROOT)
    return lambda name: load_tool(name).main
