# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""VisualDL, TensorBoard and Weights & Biases get the clip's numbers."""

import struct

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


def events(path):
    """Events of a TensorBoard file: records of length, sum, data, sum."""
    from tensorboardX.proto.event_pb2 import Event

    content, at = path.read_bytes(), 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        yield Event.FromString(content[at + 12 : at + 12 + length])
        at += length + 16


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    run_two_layers(tmp_path, report_to=["tensorboard"])
    (path,) = (tmp_path / "logs").glob("events*")
    values = [(e.step, v) for e in events(path) for v in e.summary.value]
    tags = {v.tag for _, v in values}
    assert tags >= SCALARS | HISTOGRAMS
    assert [tag for tag in tags if "lowest_h" in tag]
    steps = [step for step, v in values if v.tag == "train/clip_h_min"]
    assert steps == [3, 6, 9, 12]
    tag = f"train/clip_h/model.{GROUP}"
    assert {v.histo.num for _, v in values if v.tag == tag} == {2}


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run_two_layers(tmp_path, report_to=["wandb"])
    wandb.teardown()  # ends its service, which writes the file
    (path,) = (tmp_path / "logs" / "wandb").glob("offline-run-*/*.wandb")
    store = DataStore()
    store.open_for_scan(str(path))
    seen = set()
    while (data := store.scan_data()) is not None:
        items = Record.FromString(data).history.item
        seen |= {item.key or item.nested_key[0] for item in items}
    assert seen >= SCALARS | HISTOGRAMS | {"train/clip_lowest_h"}


def test_a_missing_backend_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"tensorboardX .*\[track\]"):
        run(make_values(tmp_path, report_to=["tensorboard"]))
