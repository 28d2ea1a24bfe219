# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mistakes at the command line: the answer names value, key and fix."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("paddlenlp")
from pages import ROOT, load_tool

CONFIG = str(ROOT / "configs/proxy/ernie_moe.yaml")


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        # Arguments after the config; keys of another section.
        ("pretrain", [CONFIG, "--max_steps", "5"], "have the form key=value"),
        ("pretrain", [CONFIG, "train.max_steps"], "not of the form key=value"),
        ("pretrain", [CONFIG, "max_steps=5"], "did you mean 'train.max_steps'"),
        ("pretrain", [], "arguments are required: config\n"),
        # The config itself.
        ("pretrain", ["configs/proxy/ernie_moe.yaml"], f"mean {CONFIG}?"),
        ("pretrain", [str(ROOT / "configs/proxy")], "is a folder: name a file"),
        ("pretrain", ["pt.yaml"], "no 'model_name_or_path'"),
        ("benchmark", ["clp"], "did you mean 'clip'?"),
        ("benchmark", ["clip", "--lists", "no"], "must be one of ernie-10b-a1"),
    ],
)
def test_a_mistake_is_named(
    tool, arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{tool}.py", *arguments])
    Path("pt.yaml").write_text("stage: PT\n")
    try:
        status = load_tool(tool).main(arguments)
    except SystemExit as exit_:
        status = exit_.code
    error = capsys.readouterr().err
    assert status == 2
    assert message in error
    assert "Traceback" not in error


def test_check_names_all_mistakes_at_once(capsys):
    mistakes = {
        "train.max_stps=5": "did you mean 'train.max_steps'",
        "schedule.learning_rate=-1": "schedule.learning_rate: ",
        "clip.lambda_rell=3": "did you mean 'lambda_rel'",
        "model.hidden_siz=4": "unknown key 'model.hidden_siz'",
        'optimizer.beta1="0.9x"': "optimizer.beta1: ",
    }
    assert load_tool("pretrain").main([CONFIG, "--check", *mistakes]) == 2
    found = capsys.readouterr().out
    assert found.count("\n  - ") == len(mistakes)
    for message in mistakes.values():
        assert message in found


def test_benchmark_prints_a_table_for_each_share(capsys, monkeypatch):
    monkeypatch.setattr(
        "adagc_lab.benchmark.clip_step.recipe_shapes",
        lambda name: [(4, 8), (8,)],
    )
    arguments = ["clip", "--lists", "llama2-7b", "--repetitions", "2"]
    assert load_tool("benchmark").main(arguments) == 0
    out = capsys.readouterr().out
    for share in ("10%", "100%"):
        assert f"llama2-7b: 2 tensors, 0M values, {share} of the" in out
    assert out.count("| AdaGC |") == 2
