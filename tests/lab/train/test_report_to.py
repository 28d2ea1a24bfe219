# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""VisualDL gets the clip's numbers."""

import pytest
from lab.train.runs import make_values, run

SCALARS = {
    "train/clip_clipped_fraction",
    "train/clip_h_min",
    "train/clip_norm/lm_head.weight",  # a tensor without layers is a curve
    "eval/loss",
}
GROUP = "layers.N.mlp.up_proj.weight"
HISTOGRAMS = {f"train/clip_{q}/model.{GROUP}" for q in ("norm", "gamma", "h")}


def test_visualdl(tmp_path):
    visualdl = pytest.importorskip("visualdl")
    changes = {"model": {"num_hidden_layers": 2}, "record": {}}
    run(make_values(tmp_path, visualdl=True, **changes))
    (log,) = (tmp_path / "logs").glob("*.log")
    reader = visualdl.LogReader(file_path=str(log))
    assert set(reader.get_tags()["scalar"]) >= SCALARS
    assert set(reader.get_tags()["histogram"]) >= HISTOGRAMS
    assert "train/clip_lowest_h" in reader.get_tags()["text"]
    for name in ("h_min", "h/lm_head.weight"):
        points = reader.get_data("scalar", f"train/clip_{name}")
        assert [point.id for point in points] == [3, 6, 9, 12]  # each once
    tag = f"train/clip_h/model.{GROUP}"
    bars = reader.get_data("histogram", tag)[-1].histogram.hist
    assert sum(bars) == 2  # layers
