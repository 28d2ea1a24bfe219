# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The wheel, as people install it."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from pages import ROOT

TRAINING = """
import importlib.resources as resources
import os
import pathlib
import paddle
import paddle_adagc
from paddle_adagc import ClipGradByAdaGC

files = resources.files(paddle_adagc)
assert (files / "py.typed").is_file()
assert (files / "kernels" / "host.cpp").is_file()
assert not (files / "../adagc_lab").exists()

paddle.seed(1)
model = paddle.nn.Linear(8, 1)
clip = ClipGradByAdaGC(t_start=5)
optimizer = paddle.optimizer.AdamW(
    0.1, parameters=model.parameters(), grad_clip=clip
)
inputs = paddle.randn([64, 8])
targets = inputs.sum(1, keepdim=True)
losses = []
for _ in range(20):
    loss = ((model(inputs) - targets) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    losses.append(float(loss))
assert losses[-1] < losses[0] / 2, losses
assert clip.state_dict()["step"] == 20
assert "memfd:paddle_adagc" in open("/proc/self/maps").read()
cache = pathlib.Path(os.environ["XDG_CACHE_HOME"], "paddle_adagc")
assert [*cache.glob("host-*")]
"""


@pytest.mark.slow
def test_wheel_trains_with_paddle_alone(tmp_path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(program, *arguments, **changes):
        done = subprocess.run(
            [environment / "bin" / program, *map(str, arguments)],
            cwd=environment,
            env=variables | changes,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    checkout = tmp_path / "checkout"  # a build leaves files in the folder
    caches = shutil.ignore_patterns("__pycache__")
    package = checkout / "paddle_adagc"
    shutil.copytree(ROOT / "paddle_adagc", package, ignore=caches)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    run("pip", "wheel", "-q", "--no-deps", "-w", tmp_path, checkout)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "paddle_adagc"
    }
    version = importlib.metadata.version("paddlepaddle")
    run("pip", "install", "-q", f"paddlepaddle=={version}", wheel)
    # An empty cache: the loops are compiled from the wheel's own source.
    run("python", "-c", TRAINING, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert "adagc-run [options]" in run("adagc-run", "--help")
    checked = run("adagc-run", "--t-start=7", "--check", "ls", "-l")
    assert "t_start=7" in checked
    assert "would run ls -l" in checked
