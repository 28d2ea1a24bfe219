# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m paddle_adagc`` says what the clip runs on, and if right."""

import re
import subprocess
import sys
import time

import numpy as np
import paddle
import pytest

from paddle_adagc import __main__ as check
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.kernels import cuda as runtime
from paddle_adagc.kernels import host

USED = {
    "host": r"C\+\+ loops",
    "cuda": "CUDA kernels",
    "operators": "Paddle's operators: .*",
}


def test_steps_are_those_of_numpy(backend, capsys):
    begin = time.process_time()  # of this process: the machine may be busy
    assert check.main([]) == 0
    assert time.process_time() - begin < 5
    out = capsys.readouterr().out
    assert re.search(rf"the clip uses  {USED[backend]}\n", out)
    assert f"paddle  {paddle.__version__}\n" in out
    assert re.search(rf"^ +numpy  {np.__version__}$", out, re.MULTILINE)
    assert re.search(r"clip steps  right, error \d\.\de-0[678] ", out)


@pytest.mark.parametrize("factor", [1.0001, float("nan")])
def test_a_wrong_clip_is_found(monkeypatch, capsys, factor):
    scale_ = GradientList.scale_
    monkeypatch.setattr(
        GradientList,
        "scale_",
        lambda self, h, discard: scale_(self, factor * h, discard),
    )
    assert check.main([]) == 1
    assert "clip steps  WRONG, error" in capsys.readouterr().out


def test_operators_have_a_reason(monkeypatch):
    load = host.load_library.__wrapped__  # without its cache
    monkeypatch.setattr(host, "load_library", load)
    monkeypatch.delenv("PADDLE_ADAGC_NATIVE", raising=False)
    monkeypatch.setenv("CXX", "no-compiler")
    monkeypatch.setattr(host, "_FAILED", [])
    assert check.backend().startswith("Paddle's operators: ")
    assert "'no-compiler'" in check.backend()
    monkeypatch.setattr(host, "_FAILED", [])
    monkeypatch.setenv("PADDLE_ADAGC_NATIVE", "0")
    assert check.backend() == "Paddle's operators: PADDLE_ADAGC_NATIVE=0"
    monkeypatch.delenv("PADDLE_ADAGC_NATIVE")
    monkeypatch.setattr(paddle.device, "get_device", lambda: "xpu:0")
    assert check.backend().endswith(": the kernels are made for NVIDIA GPUs")
    monkeypatch.setattr(paddle.device, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(runtime, "_LOADED", {0: "NVRTC was not found"})
    assert check.backend() == "Paddle's operators: NVRTC was not found"


@pytest.mark.slow
def test_command():
    done = subprocess.run(
        [sys.executable, "-m", "paddle_adagc"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "clip steps  right" in done.stdout
