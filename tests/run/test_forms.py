# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run before commands that know nothing of it.

They use a small package of PaddleNLP's name and shape, in ``stand_in``.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import slow_but
from run.forms import FORMS, JOB, SCRIPT

STAND_IN = str(Path(__file__).with_name("stand_in"))
PROGRAMS = str(Path(sys.executable).parent)
RUN = (sys.executable, "-m", "paddle_adagc.run")
BY_NAME = {form.name: form for form in FORMS}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder, with the stand-in on the path of commands."""
    path = [str(tmp_path), STAND_IN, *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("PATH", os.pathsep.join([PROGRAMS, os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", slow_but("a script", BY_NAME))
def test_a_form(folder, name):
    form = BY_NAME[name]
    if form.needs and shutil.which(form.needs) is None:
        pytest.skip(f"there is no {form.needs} here")
    for file, text in {
        "train.py": SCRIPT,
        "job.json": JOB,
        **form.files,
    }.items():
        path = json.dumps([STAND_IN, *sys.path])
        (folder / file).write_text(text.replace("{path}", path))
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
        assert re.search(pattern, printed, re.DOTALL), printed
    trained = re.findall(r"trained with (.*)", printed)
    assert sorted(trained) == sorted(form.trained), printed
    assert before == {path: path.read_bytes() for path in before}
