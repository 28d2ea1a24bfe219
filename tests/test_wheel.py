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
    ended = run_python(home, "-m", "paddle_adagc", **places)
    assert ended.returncode == 0, ended.stderr
    assert "the clip uses  C++ loops\n" in ended.stdout
    assert [*(tmp_path / "new/paddle_adagc").glob("host-*")]
