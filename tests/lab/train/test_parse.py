# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""YAML and overrides into a run's config; every mistake is named."""

import pytest
from adagc_lab.train.config import OPTIMIZERS
from adagc_lab.train.parse import (
    load_config,
    merged,
    parse_config,
    read_values,
)

MINIMAL = {
    "model": {},
    "clip": {"name": "adagc"},
    "train": {"output_dir": "out", "max_steps": 10},
}
NAN = {"kind": "gradient_nan", "steps": [3]}
MOMENTS = {"tensors": True, "moments": True}
MUON = {"optimizer": {"name": "muon"}}
TP2 = {"parallel": {"tp": 2}}


RUN = (
    "model: {hidden_size: 32}\nclip: {name: adagc, beta: 0.9}\n"
    "train: {output_dir: out, max_steps: 10}\noptimizer: {epsilon: 1e-15}\n"
)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path / "run.yaml"


def test_overrides_come_last_and_another_optimizer_takes_none_along(file):
    overrides = ["train.max_steps=7", "clip.lambda_rel=1.1"]
    config = load_config(file, [*overrides, "schedule.kind=wsd"])
    assert config.train.max_steps == 7
    assert config.clip == {"name": "adagc", "beta": 0.9, "lambda_rel": 1.1}
    assert config.schedule.kind == "wsd"
    assert config.optimizer.epsilon == 1e-15
    overrides = ["optimizer.name=lion", "optimizer.weight_decay=1.0"]
    config = load_config(file, overrides)
    assert config.optimizer == OPTIMIZERS["lion"](weight_decay=1.0)
    for override, message in (
        ("clip=[1", r"clip=\[1.*: not YAML"),
        ("train.max_steps", r"'train\.max_steps' is not of form key=value"),
    ):
        with pytest.raises(ValueError, match=message):
            load_config(file, [override])


def test_base_files_are_changed_in_order_not_copied(file, tmp_path):
    (tmp_path / "size.yaml").write_text("model: {hidden_size: 16}\n")
    (tmp_path / "other.yaml").write_text(
        "base: run.yaml\nclip: {name: global_norm}\ntrain: {max_steps: 3}\n"
    )
    (tmp_path / "small.yaml").write_text(
        "base: [other.yaml, size.yaml]\nmodel: {head_dim: 8}\n"
    )
    assert read_values(tmp_path / "small.yaml") == {
        "model": {"hidden_size": 16, "head_dim": 8},
        "clip": {"name": "global_norm"},
        "train": {"output_dir": "out", "max_steps": 3},
        "optimizer": {"epsilon": 1e-15},
    }


def test_one_process_s_layout_is_no_part_of_a_run_s_identity():
    assert "parallel" not in parse_config(MINIMAL).to_dict()
    values = parse_config({**MINIMAL, "parallel": {"pp": 2}}).to_dict()
    assert values["parallel"]["pp"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trian": {}}, "unknown key 'trian', did you mean 'train'"),
        ({"lambda_rel": 1}, "'lambda_rel': the keys are model, clip, train"),
        ({"optimizer": {"lr": 1}}, "'optimizer.lr': the keys are name, weight"),
        (
            {"optimizer": {"name": "adam"}},
            "optimizer: .* 'adam' .* 'adamw', 'lion'",
        ),
        (
            {"optimizer": {"name": "muon", "momentm": 0.9}},
            "'optimizer.momentum'",
        ),
        ({"clip": "adagc"}, r"clip: .* mean clip\.name=adagc\?"),
        ({"train": 3}, "train: .*, got 3"),
        ({"train": {"max_steps": 1e3}}, "train.max_steps: .*integer, got 1000"),
        ({"record": {"moments": True}}, "^record: moments=True needs tensors"),
        ({"faults": [{**NAN, "step": [3]}]}, r"faults.0.step'"),
        # What does not fit together.
        ({"parallel": {"ep": 2}}, "ep=2 does not divide"),
        (TP2 | {"record": {"tensors": True}}, "record.tensors"),
        (TP2 | {"faults": [NAN]}, "1 faults"),
        (MUON | {"parallel": {"sharding": 2}}, "sharding_split_param to false"),
        (MUON | {"record": MOMENTS}, r"record\.moments.*'muon'"),
    ],
)
def test_bad_values_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        parse_config(merged(MINIMAL, changes))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- 1\n", "run.yaml holds a list, not a map"),
        (b"clip: {name: [adagc\ntrain: {}\n", "run.yaml, line 2: not YAML"),
        (b"a: 1\na: 2\n", "run.yaml, line 2: not YAML: found duplicate key a"),
        (b"a: 1\n# caf\xe9\n", "run.yaml.*: not YAML"),
        (b"base: 3\n", "run.yaml: base is 3"),
        (b"base: run.yaml\n", "run.yaml: its base .*/run.yaml leads back to"),
        (b"a: ${oc.env:HOME}\n", "run.yaml: .* write the value itself$"),
        (b"nosuch: null\n", "unknown key 'nosuch'"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, message):
    (tmp_path / "run.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_config(tmp_path / "run.yaml")
