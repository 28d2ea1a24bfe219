# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

from paddle_adagc.lab.benchmark import training_step
from paddle_adagc.lab.train.parse import load_config

CONFIG = Path(__file__).parents[3] / "configs/proxy/llama_low_noise.yaml"


def test_copies_train_in_turn(monkeypatch):
    monkeypatch.setattr(training_step, "_T_START", 2)
    config = load_config(
        CONFIG,
        ["model.hidden_size=16", "train.batch_size=2", "data.seq_length=8"],
    )
    rows = training_step.compare(config, 4)
    assert [row.clip for row in rows] == ["no clip", "GlobalGC", "AdaGC"]
    assert all(len(row.seconds) == 4 for row in rows)
    assert rows[1].of_reference == (1.0,) * 4
    table = training_step.to_markdown(rows)
    assert "| AdaGC |" in table
