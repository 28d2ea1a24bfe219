# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run's own options."""

import inspect
import re
import shlex
import venv
from pathlib import Path

import pytest
from helpers import run_python

from paddle_adagc import ClipGradByAdaGC, run
from paddle_adagc.run.command import VARIABLE
from paddle_adagc.run.settings import CLIP

MISTAKES = {
    "--t-strat 5 ls": "--t-strat: .* did you mean 't_start'",
    "--t-start true ls": "t_start must be an integer",
    "--lambda-rel 1e999 ls": "lambda_rel must be finite, got",
    "--t-start 5 -x 6 ls": "'-x' is no option",
    "--t-start 5": "give the command to run",
    "--t-start --check ls": "--t-start lacks its value",
    "--check=no ls": "--check takes no value, got 'no'",
    "--missing-state x ls": "one of raise, start; got 'x'",
    "--settings none.yaml ls": "No such file",
    "--no-record --skip-above=8 ls": "needs the record",
    "trian job.json": "No such file or directory: 'trian'",
    "--watch --t-start=5 true": "--t-start: --watch keeps the clip",
    "--watch --require true": "leave --require out",
    "--watch --no-record true": "leave --no-record out",
    "--watch --stop-on=inf true": "stop_on must be one of nan",
    "python -I train.py": "python -I keeps adagc-run out: leave -I out",
    "timeout 9 python3.11 -W ignore -S -m train": "3.11 -S keeps adagc-run",
    "nice python -uE train.py": "python -uE keeps adagc-run out",
    "env -i python train.py": "env -i keeps adagc-run out: leave -i out",
    "env -C . -u PYTHONPATH python train.py": "env -u PYTHONPATH keeps",
    "env PYTHONPATH=/mine python a.py": "env PYTHONPATH=/mine keeps",
}
"""Words after ``adagc-run`` -> what it says."""

SETTINGS = {
    "clip: &a {b: *a}": "an alias",
    "clip: !!python/name:os.system {}": "cannot be read",
    "[" * 50000: "cannot be read",
    "#" * 70000: "is larger than 65536 bytes",
    "t_start: 2\n": "has no section of settings",
    "clip: {beta: 2}": r"beta must be in \[0, 1\)",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert run.main(shlex.split(words)) == 2
    assert re.search(MISTAKES[words], capsys.readouterr().err)


@pytest.mark.parametrize("text", SETTINGS, ids=lambda text: text[:20])
def test_files_of_settings_that_are_refused(tmp_path, capsys, text):
    file = tmp_path / ("clip.json" if text[0] == "[" else "clip.yaml")
    file.write_text(text)
    assert run.main(["--settings", str(file), "echo", "started"]) == 2
    assert re.search(SETTINGS[text], capsys.readouterr().err)


def test_words_about_an_isolated_python_are_no_command():
    words = ("echo", "--prompt", "how do I run python -I safely")
    ended = run_python(".", "-m", "paddle_adagc.run", *words)
    assert "python -I safely\n" in ended.stdout
    assert re.fullmatch(r"[^\n]*trains without AdaGC\.\n", ended.stderr)


def test_each_argument_of_the_clip_is_an_option():
    assert {*CLIP} == {*inspect.signature(ClipGradByAdaGC).parameters}


@pytest.mark.parametrize(
    ("name", "text", "beta"),  # a number may be written in any way
    [
        ("mine.yaml", "clip: {t_start: 7, units: {}, beta: 0.9}\n", ".95"),
        ("mine.yaml", "# mine\nclip: {t_start: 7, units: {}}\n", "+.950"),
        ("mine.json", '{"clip": {"t_start": 7, "beta": 0.9}}', "95e-2"),
    ],
)
def test_check_says_what_would_be_in_force_and_from_where(
    name, text, beta, tmp_path, capsys
):
    file = tmp_path / name
    file.write_text(text)
    words = ["--check", "--settings", str(file), f"--beta={beta}"]
    assert run.main([*words, "paddleformers-cli", "train", "my.yaml"]) == 0
    printed = capsys.readouterr().out
    assert f"settings: t_start=7 ({file})" in printed
    assert "beta=0.95 (--beta)" in printed
    assert "lambda_abs would be the Trainer's max_grad_norm" in printed
    assert "would run paddleformers-cli train my.yaml" in printed


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
        said = "python neither clips nor records: No module named 'pa"
        assert said in ended.stderr
