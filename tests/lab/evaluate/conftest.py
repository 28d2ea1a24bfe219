# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tiny trained decoders of every exported kind, and the commands."""

import functools
from pathlib import Path

import pytest
from lab.models.tiny import TINY
from pages import load_tool

from paddle_adagc.lab.train.parse import parse_config
from paddle_adagc.lab.train.run import run_pretraining

ROOT = Path(__file__).parents[3]


def train(family, output_dir):
    """Train a few steps; every expert bias has moved by then."""
    config = {
        "model": TINY[family],
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
    return functools.cache(lambda family: train(family, folder / family))


@pytest.fixture
def command(monkeypatch):
    """The `main` of a command, run from the root of the repository."""
    monkeypatch.chdir(ROOT)
    return lambda name: load_tool(name).main
