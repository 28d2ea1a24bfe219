# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mistakes at the command line: the answer names value, key and fix."""

import sys
from pathlib import Path

import pytest
from helpers import run_python

pytest.importorskip("paddlenlp")
from pages import ROOT, load_tool

benchmark, pretrain = load_tool("benchmark"), load_tool("pretrain")
CONFIG = str(ROOT / "configs/proxy/ernie_moe.yaml")


def refused(main, arguments, capsys):
    """Standard error of a command that exits with status 2."""
    try:
        status = main(arguments)
    except SystemExit as exit_:
        status = exit_.code
    printed = capsys.readouterr()
    assert status == 2, printed
    assert "Traceback" not in printed.err
    return printed.err


NO_FORM = "is not of the form key=value"
ARGUMENTS = {
    "--max_steps 5": "values of the config have the form key=value",
    "train.max_steps 5": f"'train.max_steps' {NO_FORM}",
    CONFIG: f"{CONFIG!r} {NO_FORM}",
    # Keys in another section.
    "train.learning_rate=1": "did you mean 'schedule.learning_rate'?",
    "max_steps=5": "did you mean 'train.max_steps'?",
    "data.beta2=0.9": "did you mean 'optimizer.beta2'?",
}


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_arguments_after_the_config(arguments, monkeypatch, capsys):
    given = [CONFIG, *arguments.split()]
    monkeypatch.setattr(sys, "argv", ["pretrain.py", *given])
    assert ARGUMENTS[arguments] in refused(pretrain.main, given, capsys)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("configs/proxy/ernie_moe.yaml", f"did you mean {CONFIG}?"),
        (str(ROOT / "configs/proxy"), "is a folder: name a file in it (clip_"),
        (CONFIG.replace("moe.", "mo."), f"did you mean {CONFIG}"),
        ("pt.yaml", "no 'model_name_or_path'"),
    ],
)
def test_missing_config_has_near_names_and_a_recipe_its_values(
    path, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("pt.yaml").write_text("stage: PT\n")
    assert message in refused(pretrain.main, [path], capsys)


def test_overrides_are_not_called_required(capsys):
    error = refused(pretrain.main, [], capsys)
    assert error.endswith("arguments are required: config\n")


def test_check_names_all_mistakes_at_once(capsys):
    mistakes = {
        "train.max_stps=5": "did you mean 'train.max_steps'",
        "schedule.learning_rate=-1": "schedule.learning_rate: ",
        "clip.lambda_rell=3": "did you mean 'lambda_rel'",
        "model.hidden_siz=4": "unknown key 'model.hidden_siz'",
        'optimizer.beta1="0.9x"': "optimizer.beta1: ",
    }
    assert pretrain.main([CONFIG, "--check", *mistakes]) == 2
    found = capsys.readouterr().out
    assert found.count("\n  - ") == len(mistakes)
    for message in mistakes.values():
        assert message in found


def test_check_names_a_clip_s_argument_of_a_wrong_type(capsys):
    assert pretrain.main([CONFIG, "--check", 'clip.t_start="20"']) == 2
    found = capsys.readouterr().out
    assert "\n  - t_start must be an integer, got '20'\n" in found


def test_a_wrong_name_is_named(capsys):
    for arguments, message in {
        "clp": ", did you mean 'clip'?\n",
        "clip --lists no": "--lists must be one of ernie-10b-a1.4b",
    }.items():
        assert message in refused(benchmark.main, arguments.split(), capsys)


def test_benchmark_prints_a_table_for_each_share(capsys, monkeypatch):
    monkeypatch.setattr(
        "adagc_lab.benchmark.clip_step.recipe_shapes",
        lambda name: [(4, 8), (8,)],
    )
    arguments = ["clip", "--lists", "llama2-7b", "--repetitions", "2"]
    assert benchmark.main(arguments) == 0
    out = capsys.readouterr().out
    for share in ("10%", "100%"):
        assert f"llama2-7b: 2 tensors, 0M values, {share} of the" in out
    assert out.count("| AdaGC |") == 2


def test_noise_of_paddle_is_filtered(tmp_path):
    command = [ROOT / "tools/pretrain.py", CONFIG, "--check"]
    done = run_python(tmp_path, *command, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (0, "")
