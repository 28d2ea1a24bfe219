# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The package as people install it: the wheel, and the checkout."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from core.integrations.test_run import SCRIPT

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
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
assert not (files / "lab").is_dir()

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
assert [*cache.glob("host-*.so")]
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy: a build leaves files in the folder."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("paddle_adagc", "tools"):
        shutil.copytree(
            ROOT / name,
            folder / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def make_environment(folder):
    """Return a function that runs a program of a new virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(program, *arguments, **changes):
        done = subprocess.run(
            [folder / "bin" / program, *map(str, arguments)],
            cwd=folder,
            env=variables | changes,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with Paddle alone."""
    run = make_environment(tmp_path_factory.mktemp("environment"))
    version = importlib.metadata.version("paddlepaddle")
    run("pip", "install", "-q", f"paddlepaddle=={version}")
    return run


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    """An environment without Paddle."""
    return make_environment(tmp_path_factory.mktemp("builder"))


@pytest.fixture(scope="module")
def wheel(checkout, builder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    builder("pip", "wheel", "-q", "--no-deps", "-w", folder, checkout)
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_trains_with_paddle_alone(wheel, environment, tmp_path):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "paddle_adagc"
    }
    assert not any("/lab/" in name for name in names)
    environment("pip", "install", "-q", "--force-reinstall", "--no-deps", wheel)
    # An empty cache: the loops are compiled from the wheel's own source.
    environment("python", "-c", TRAINING, XDG_CACHE_HOME=str(tmp_path))
    assert "adagc-run [options]" in environment("adagc-run", "--help")
    checked = environment("adagc-run", "--t-start=7", "--check", "ls", "-l")
    assert "t_start=7" in checked
    assert "would run ls -l" in checked


def test_adagc_run_of_the_wheel_with_paddlenlp(wheel, builder, tmp_path):
    """The tests' libraries, and of this package nothing but the wheel."""
    pytest.importorskip("paddlenlp")
    builder("pip", "install", "-q", "--no-deps", wheel)
    code = (
        "import sysconfig; paths = sysconfig.get_paths(); "
        "print(paths['purelib'], paths['scripts'])"
    )
    mine, scripts = builder("python", "-c", code).split()
    libraries = Path(mine) / "libraries.pth"
    libraries.write_text(sysconfig.get_path("purelib") + "\n")
    code = "import paddle_adagc; print(paddle_adagc.__file__)"
    assert Path(builder("python", "-c", code).strip()).is_relative_to(mine)
    (tmp_path / "train.py").write_text(SCRIPT)
    job = {
        "output_dir": str(tmp_path / "out"),
        "max_steps": 6,
        "save_steps": 3,
        "device": "cpu",
        "clip": {"t_start": 2},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    python = Path(scripts) / "python"
    command = (python, tmp_path / "train.py", tmp_path / "job.json")
    printed = builder("adagc-run", "--beta=0.9", *command)
    assert "clip: ClipGradByAdaGC(lambda_rel=1.04, beta=0.9" in printed
    assert (tmp_path / "out/checkpoint-6/adagc_state.safetensors").is_file()


NEED_MORE = {"check_gpu", "command", "config_page", "mutate"}
NEED_MORE |= {"research_module"}


@pytest.mark.long
def test_checkout_has_the_laboratory_and_its_commands(checkout, environment):
    environment("pip", "install", "-q", "--no-deps", "-e", checkout)
    environment("python", "-c", "import paddle_adagc.lab.train")
    for path in (checkout / "tools").glob("*.py"):
        if path.stem not in NEED_MORE:
            usage = environment("python", path, "--help")
            assert usage.startswith(f"usage: python tools/{path.name}")
