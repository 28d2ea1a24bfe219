# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run before commands that know nothing of it.

Most use a small package of PaddleNLP's name and shape, in ``stand_in``.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run import forms, other_forms, scripts

STAND_IN = str(Path(__file__).with_name("stand_in"))
PROGRAMS = str(Path(sys.executable).parent)
RUN = (sys.executable, "-m", "paddle_adagc.run")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder, with the stand-in on the path of commands."""
    path = [str(tmp_path), STAND_IN, *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("PATH", os.pathsep.join([PROGRAMS, os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.chdir(tmp_path)
    return tmp_path


ALL = [*forms.FORMS, *other_forms.FORMS]
FORMS = [
    pytest.param(
        form, id=form.name, marks=[pytest.mark.slow] * bool(form.needs)
    )
    for form in ALL
]


def has(program):
    """Whether a program is here, and may run."""
    words = program.split()
    if shutil.which(words[0]) is None:
        return False
    ended = subprocess.run([*words, "true"], capture_output=True)
    return len(words) == 1 or ended.returncode == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_form(folder, form):
    if form.needs not in ("", "paddle", "launcher") and not has(form.needs):
        pytest.skip(f"there is no {form.needs} here")
    scripts.write_files(form, folder, [STAND_IN, *sys.path])
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    words = [*shlex.split(form.options), *shlex.split(form.command)]
    ended = subprocess.run(
        [*RUN, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    printed = ended.stdout
    for path in folder.glob("log/workerlog.[1-9]"):
        printed += path.read_text()
    assert ended.returncode == form.status, printed
    for pattern in form.said:
        is_text = not form.needs and form.status
        pattern = re.escape(pattern) if is_text else pattern
        assert re.search(pattern, printed, re.DOTALL), printed
    trained = re.findall(r"trained with (.*)", printed)
    assert sorted(trained) == sorted(form.trained), printed
    assert before == {path: path.read_bytes() for path in before}


def test_there_are_sixty_forms():
    assert len({form.name for form in ALL}) == len(ALL) >= 60
