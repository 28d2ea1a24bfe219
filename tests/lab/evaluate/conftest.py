# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tiny trained decoders of every exported kind, and the commands."""

import functools

import pytest
from lab.models.tiny import TINY
from lab.train.runs import ROOT, make_values, pretrain
from pages import load_tool


def train(family, output_dir):
    """Train a few steps; every expert bias has moved by then."""
    values = make_values(
        output_dir,
        model=TINY[family],
        data={"seq_length": 24},
        schedule={"learning_rate": 0.01},
        clip={"name": "adagc", "t_start": 2},
        record={},
        max_steps=4,
        save_every=2,
        expert_bias_rate=0.05 * (family == "ernie4_5_moe"),
    )
    assert pretrain(values) == "finished"
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
