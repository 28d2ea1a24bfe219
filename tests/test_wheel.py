# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The wheel has all files of the package, and works from them alone.

``.ci/environment`` installs it with what it asks for.
"""

import shutil
import subprocess
import sys
import zipfile

import pytest
from helpers import run_python
from pages import ROOT

TRAINING = """
import paddle
from paddle_adagc import ClipGradByAdaGC

model = paddle.nn.Linear(8, 1)
clip = ClipGradByAdaGC(t_start=5)
optimizer = paddle.optimizer.AdamW(
    parameters=model.parameters(), grad_clip=clip
)
for _ in range(8):
    model(paddle.ones([2, 8])).sum().backward()
    optimizer.step()
print(clip.state_dict()["step"])
assert "memfd:paddle_adagc" in open("/proc/self/maps").read()
"""


@pytest.mark.slow
def test_the_wheel_is_complete(tmp_path):
    checkout = tmp_path / "checkout"  # a build leaves files in the folder
    package = checkout / "paddle_adagc"
    caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / package.name, package, ignore=caches)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    files = {
        path.relative_to(checkout).as_posix()
        for path in package.rglob("*")
        if path.is_file()
    }
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps")
    subprocess.run([*pip, "-w", tmp_path, checkout], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == files
    home = tmp_path / "home"
    zipfile.ZipFile(wheel).extractall(home)
    # An empty cache: the loops are compiled from the wheel's own source.
    places = {"PYTHONPATH": str(home), "XDG_CACHE_HOME": str(tmp_path / "new")}
    words = ("-m", "paddle_adagc.run", sys.executable, "-c", TRAINING)
    ended = run_python(home, *words, **places)
    assert (ended.stdout, ended.returncode) == ("8\n", 0), ended.stderr
    assert "AdaGC in force: t_start=5 (the script)" in ended.stderr
    assert [*(tmp_path / "new/paddle_adagc").glob("host-*")]
