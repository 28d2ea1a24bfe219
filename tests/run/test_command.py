# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run's own options."""

import inspect
import json
import os
import re
import shutil
import sys
import venv
from pathlib import Path

import pytest
from helpers import run_python

from paddle_adagc import ClipGradByAdaGC, run
from paddle_adagc.run.command import VARIABLE
from paddle_adagc.run.settings import CLIP

STAND_IN = str(Path(__file__).with_name("stand_in"))


def test_every_argument_of_the_clip_is_an_option():
    known = inspect.signature(ClipGradByAdaGC).parameters.keys()
    assert {*CLIP} == {*known}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--t-strat", "5", "ls"], "--t-strat: .* did you mean 't_start'"),
        (["--clip", "zclip", "ls"], "AdaGC has no argument 'clip'"),
        (["--t-start", "x", "ls"], "t_start must be an integer >= 0, got 'x'"),
        (["--t-start", "true", "ls"], "t_start must be an integer >= 0"),
        (["--lambda-rel", "1e999", "ls"], "lambda_rel must be positive, got"),
        (["--strict", "1", "ls"], "strict must be true or false, got 1"),
        (["--init", "constant", "ls"], "one of warmup_min, warmup_ema, got"),
        (["--t-start", "5", "-x", "6", "ls"], "'-x' is no option"),
        (["--t-start", "5"], "give the command to run"),
        (["--check", "--t-start"], "--t-start lacks its value"),
        (["--t-start", "--check", "ls"], "--t-start lacks its value"),
        (["--check=no", "ls"], "--check takes no value, got 'no'"),
        (["--missing-state", "x", "ls"], "one of raise, start, got 'x'"),
        (["--settings", "none.yaml", "ls"], "No such file"),
        (["--skip-above", "-1", "ls"], "skip_above must be positive"),
        (["--stop-on", "inf", "ls"], "stop_on must be one of nan"),
        (["--no-record", "--skip-above=8", "ls"], "needs the record"),
        (["."], "Permission denied: '.'"),
    ],
)
def test_mistakes(tmp_path, words, message):
    ended = run_python(tmp_path, "-m", "paddle_adagc.run", *words)
    assert ended.returncode == 2
    assert re.search(message, ended.stderr), ended.stderr


@pytest.mark.parametrize("value", [".5", "5e-1", "+.50"])
def test_a_number_may_be_written_in_any_way(value, capsys):
    assert run.main(["--check", "--lambda-abs", value, "python", "x.py"]) == 0
    assert "lambda_abs=0.5 (--lambda-abs)" in capsys.readouterr().out


def test_check_says_what_would_be_in_force_and_from_where(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text("# mine\nclip: {t_start: 7, units: {}, beta: 0.9}\n")
    words = ["--check", "--settings", str(file), "--beta=.95"]
    assert run.main([*words, "paddleformers-cli", "train", "my.yaml"]) == 0
    printed = capsys.readouterr().out
    assert "ClipGradByAdaGC(lambda_rel=1.04, beta=0.95, lambda_abs" in printed
    assert f"from t_start=7 ({file})" in printed
    assert "beta=0.95 (--beta)" in printed
    assert "lambda_abs would be max_grad_norm of the Trainer's" in printed
    assert "would run paddleformers-cli train my.yaml" in printed
    assert "paddlefleet is not installed here" in printed


def test_no_adagc_run_within_another(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "{}")
    assert run.main(["ls"]) == 2
    assert "within another adagc-run" in capsys.readouterr().err


def test_a_python_without_the_package_says_so(tmp_path):
    """Once it touches Paddle, here an empty package of its name."""
    venv.create(tmp_path / "venv")
    (tmp_path / "paddle").mkdir()
    (tmp_path / "paddle/__init__.py").touch()
    start = "PYTHONPATH=${PYTHONPATH%%:*} venv/bin/python -c 'import paddle'"
    for options, status in (((), 0), (("--require",), 1)):
        ended = run_python(
            tmp_path,
            *("-m", "paddle_adagc.run", *options, "bash", "-c", start),
            PYTHONPATH=str(Path(run.__file__).parents[2]),
        )
        assert ended.returncode == status, ended.stderr
        assert "python does not clip: No module named 'pa" in ended.stderr


@pytest.mark.slow
def test_each_trainer_has_the_settings_of_its_arguments(tmp_path):
    """Of two jobs in one process; in a zip, whose loader has all modules."""
    shutil.make_archive(str(tmp_path / "nlp"), "zip", STAND_IN)
    for name, norm in (("a", 0.25), ("b", 0.5)):
        values = {"output_dir": name, "max_grad_norm": norm, "max_steps": 2}
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    (tmp_path / "two.py").write_text(
        "from paddlenlp.trainer import *\n"
        "parser = PdArgumentParser(TrainingArguments)\n"
        "both = [parser.parse_json_file(f'{x}.json')[0] for x in 'ab']\n"
        "for args in both:\n"
        "    Trainer(args=args).train()\n"
    )
    path = os.pathsep.join([str(tmp_path / "nlp.zip"), *sys.path])
    words = ("-m", "paddle_adagc.run", sys.executable, "two.py")
    ended = run_python(tmp_path, *words, PYTHONPATH=path)
    assert ended.returncode == 0, ended.stderr
    for norm in ("0.25", "0.5"):
        assert f"in force: lambda_abs={norm} (max_grad_norm)" in ended.stderr
        assert f"trained with ClipGradByAdaGC lambda_abs={norm}" in ended.stdout
    assert "AdaGC clipped 4 steps" in ended.stderr
