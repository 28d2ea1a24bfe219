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
"""tools/check_gpu.py as far as it goes without a GPU: its checks of values."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import backends
import pytest

TOOL = Path(__file__).parents[3] / "tools/check_gpu.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("check_gpu", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def module_of(tool, cuda):
    cuda.emulated_reset()
    return tool.driver.Driver(cuda).load(b"")


@pytest.mark.parametrize("framework", ["Paddle", "Torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_values_are_right_on_the_emulated_gpu(tool, framework, dtype):
    if framework == "Torch":
        pytest.importorskip("torch")
    row = tool.check_values(
        module_of(tool, backends.emulated_cuda()),
        getattr(tool, framework)("cpu"),
        dtype,
    )
    assert row["norm_error"] < 1e-6


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("i < part.size;", "i + 7 < part.size;"), ("factor == 1.0f", "true")],
)
def test_wrong_kernels_are_found(tool, tmp_path, right, wrong):
    source = (tool.CUDA / "multi_tensor.cu").read_text()
    assert right in source
    cuda = backends.build_emulated(tmp_path, source.replace(right, wrong))
    module = module_of(tool, cuda)
    with pytest.raises(AssertionError, match="float32"):
        tool.check_values(module, tool.Paddle("cpu"), "float32")


def test_without_a_gpu_it_says_what_is_missing():
    done = subprocess.run(
        [sys.executable, TOOL], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no GPU to check" in done.stderr


def test_its_parts_need_no_framework():
    for name in ("driver", "tables"):
        text = (
            TOOL.parent.parent / f"paddle_adagc/kernels/cuda/{name}.py"
        ).read_text()
        assert not re.search(r"^(import|from) (paddle|torch)", text, re.M)
