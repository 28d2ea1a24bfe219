# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""VisualDL gets the clip's numbers."""

import pytest
from lab.train.runs import make_values, run

SCALARS = {
    "train/loss",
    "train/learning_rate",
    "train/clip_global_grad_norm",
    "train/clip_clipped_grad_norm",
    "train/clip_clipped_fraction",
    "train/clip_clipped_norm_fraction",
    "train/clip_h_min",
    "train/clip_h_p10",
    "train/clip_h_median",
    "train/clip_nonfinite",
    "train/clip_num_tensors",
    "train/clip_norm/lm_head.weight",  # a tensor without layers is a curve
    "train/clip_gamma/lm_head.weight",
    "train/clip_h/lm_head.weight",
    "eval/loss",
}
GROUP = "layers.N.mlp.up_proj.weight"
HISTOGRAMS = {f"train/clip_{q}/model.{GROUP}" for q in ("norm", "gamma", "h")}


def run_two_layers(directory, **train):
    changes = {"model": {"num_hidden_layers": 2}, "record": {}}
    assert run(make_values(directory, **changes, **train))[0] == "finished"


def test_visualdl(tmp_path):
    visualdl = pytest.importorskip("visualdl")
    run_two_layers(tmp_path, visualdl=True)
    (log,) = (tmp_path / "logs").glob("*.log")
    reader = visualdl.LogReader(file_path=str(log))
    assert set(reader.get_tags()["scalar"]) >= SCALARS
    assert set(reader.get_tags()["histogram"]) >= HISTOGRAMS
    points = reader.get_data("scalar", "train/clip_h_min")
    assert [point.id for point in points] == [3, 6, 9, 12]
    points = reader.get_data("scalar", "train/clip_h/lm_head.weight")
    assert [point.id for point in points] == [3, 6, 9, 12]  # each once
    assert "train/clip_lowest_h" in reader.get_tags()["text"]
    tag = f"train/clip_h/model.{GROUP}"
    bars = reader.get_data("histogram", tag)[-1].histogram.hist
    assert sum(bars) == 2  # layers
