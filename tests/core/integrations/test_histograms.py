# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which writer gets which numbers."""

import math
import types

import numpy as np
import pytest

from paddle_adagc.integrations.trainer import add_histograms


class Writer:
    """Keeps what it gets."""

    def __init__(self):
        self.bars, self.points = {}, {}

    def add_histogram(self, tag, values, step):
        self.bars[tag] = (sorted(values.tolist()), step)

    def add_scalar(self, tag, value, step):
        self.points[tag] = (value, step)


def numbers(norm):
    return {"norm": norm, "gamma": 2.0, "h": 0.5}


TENSORS = {
    "layers.0.up.weight": numbers(1.0),
    "layers.1.up.weight": numbers(3.0),
    "layers.0.down.weight": numbers(math.inf),
    "layers.1.down.weight": numbers(math.nan),
    "head.weight": numbers(5.0),
    "embed.weight": numbers(math.inf),
}


@pytest.mark.parametrize("name", ["vdl_writer", "tb_writer"])
def test_groups_are_histograms_and_single_tensors_are_curves(name):
    writer = Writer()
    callback = types.SimpleNamespace(**{name: writer})
    summary = {"tensors": TENSORS, "lowest_h": {"head.weight": 0.5}}
    add_histograms([object(), callback], summary, 7)
    assert writer.bars["train/clip_norm/layers.N.up.weight"] == ([1.0, 3.0], 7)
    assert "train/clip_norm/layers.N.down.weight" not in writer.bars
    assert writer.points["train/clip_norm/head.weight"] == (5.0, 7)
    assert "train/clip_norm/embed.weight" not in writer.points
    assert "train/clip_h/head.weight" not in writer.points
    assert writer.points["train/clip_h/embed.weight"] == (0.5, 7)


def test_a_model_may_have_curves_or_histograms_alone():
    curves, bars = Writer(), Writer()
    alone = {"tensors": {"head.weight": numbers(1.0)}}
    add_histograms([types.SimpleNamespace(tb_writer=curves)], alone, 1)
    assert set(curves.points) == {
        f"train/clip_{name}/head.weight" for name in ("norm", "gamma", "h")
    }
    layers = {k: v for k, v in TENSORS.items() if "up" in k}
    add_histograms(
        [types.SimpleNamespace(tb_writer=bars)], {"tensors": layers}, 1
    )
    assert (len(bars.bars), bars.points) == (3, {})


def test_weights_and_biases_gets_all_at_once():
    logged = []
    wandb = types.SimpleNamespace(Histogram=np.sum, log=logged.append)
    add_histograms(
        [types.SimpleNamespace(_wandb=wandb)], {"tensors": TENSORS}, 9
    )
    assert logged[0]["train/global_step"] == 9
    assert logged[0]["train/clip_norm/layers.N.up.weight"] == 4.0
    assert logged[0]["train/clip_norm/head.weight"] == 5.0
