# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The folder for PaddleFleet: the lines of ``docs/upstream.md``."""

import shutil
import subprocess

import pytest
from helpers import run_python
from pages import ROOT, blocks

CODE = """
import paddle
import paddle_adagc
from paddle_adagc.integrations.paddlefleet import ClippingMixin

print(paddle_adagc.__file__)
model = paddle.nn.Linear(4, 2)
clip = paddle_adagc.ClipGradByAdaGC(t_start=1)
clip.bind(model)
adamw = paddle.optimizer.AdamW
optimizer = adamw(parameters=model.parameters(), grad_clip=clip)
for _ in range(3):
    model(paddle.ones([3, 4])).sum().backward()
    optimizer.step()
paddle_adagc.save_state(clip.state_dict(), "state")
assert paddle_adagc.load_state("state")["step"] == 3
"""


def test_the_copy_clips_alone(tmp_path):
    if shutil.which("ruff") is None:
        pytest.skip("no ruff here: pip install ruff")
    (lines,) = blocks(ROOT / "docs/upstream.md", "bash")
    for name in ("paddle_adagc", "LICENSE"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = lines.replace("cp -r ", "cp -rL ")
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    home = tmp_path / "build/AdaGC"
    done = run_python(home, "-c", CODE, PYTHONPATH=str(home))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(home / "paddle_adagc/__init__.py")
