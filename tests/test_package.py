# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Importing the package costs what importing Paddle costs, and no more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules_after(statement):
    code = f"{statement}; import json, sys; print(json.dumps([*sys.modules]))"
    output = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    ).stdout
    return set(json.loads(output))


def test_import_needs_paddle_and_numpy_alone():
    extra = modules_after("import paddle, safetensors; import paddle_adagc")
    extra -= modules_after("import paddle, safetensors")
    foreign = {name.split(".")[0] for name in extra}
    foreign -= set(sys.stdlib_module_names) | {"paddle", "numpy"}
    assert foreign == {"paddle_adagc"}


@pytest.mark.parametrize("name", ["torch", "paddlenlp", "matplotlib"])
def test_import_loads_nothing_heavy(name):
    assert name not in modules_after("import paddle_adagc")


def test_no_file_imports_torch_but_the_golden_file_scripts():
    users = {
        path.name
        for folder in ("paddle_adagc", "tools", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if any(
            line.startswith(("import torch", "from torch"))
            for line in path.read_text().splitlines()
        )
    }
    assert users <= {"make_golden.py"}
