# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an import of the package loads, and what it does not."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import paddle_adagc

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


def test_the_bare_import_loads_the_standard_library_alone():
    loaded = modules_after("import paddle_adagc") - modules_after("pass")
    tops = {name.split(".")[0] for name in loaded}
    assert tops - set(sys.stdlib_module_names) == {"paddle_adagc"}


def test_the_clip_needs_paddle_numpy_and_safetensors_alone():
    given = "import paddle, safetensors.numpy"
    clip = f"{given}; from paddle_adagc import ClipGradByAdaGC"
    loaded = modules_after(clip) - modules_after(given)
    foreign = {name.split(".")[0] for name in loaded}
    foreign -= set(sys.stdlib_module_names) | {"paddle", "numpy"}
    assert foreign == {"paddle_adagc"}
    assert not any(name.startswith("paddle_adagc.lab") for name in loaded)


def test_public_names_are_those_of_their_modules():
    for name in paddle_adagc.__all__:
        home = importlib.import_module(getattr(paddle_adagc, name).__module__)
        assert getattr(paddle_adagc, name) is getattr(home, name)
    assert {*paddle_adagc.__all__, "__version__"} <= {*dir(paddle_adagc)}


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="has no attribute 'ClipGrad'"):
        _ = paddle_adagc.ClipGrad


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
