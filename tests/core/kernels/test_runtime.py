# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Clip steps in a process that finds a driver and NVRTC as on a GPU machine.

Both are the emulator's, under their real names on the library path or in
packages as wheels have them. Only Paddle is told what to answer.
"""

import dis
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import backends
import pytest

from paddle_adagc.kernels.cuda import runtime

PRELUDE = """
import ctypes, json, os, sys
from pathlib import Path
import paddle
from paddle.base import libpaddle

paddle.device.get_device = lambda: "gpu:0"
paddle.version.cuda = lambda: "12.9"
libpaddle._get_current_raw_stream = lambda device: 0
lines = set()

def trace(frame, event, argument):
    if frame.f_code.co_filename.endswith("cuda/runtime.py"):
        lines.add(frame.f_lineno)
        return trace

sys.settrace(trace)
from paddle_adagc import ClipGradByAdaGC
from paddle_adagc import kernels
from paddle_adagc.kernels import host
from paddle_adagc.kernels.cuda import runtime

host.CUDA = host.CPU  # where tensors lie
kernels.BACKENDS = kernels.BACKENDS[1:]  # else those in host memory
cuda = ctypes.CDLL("libcuda.so.1")

def clipped():
    runtime._LOADED.clear()
    clip = ClipGradByAdaGC(t_start=0)
    weight = paddle.create_parameter([3], "float32")
    pairs = [(weight, paddle.full([3], norm)) for norm in (1.0, 2.0)]
    cuda.emulated_reset()
    out = [clip([pair])[0][1].tolist() for pair in pairs]
    launches = cuda.emulated_calls(b"cuLaunchKernel")
    return out, launches > 0, runtime.why_not(0)

def tell(**ways):
    maps = open("/proc/self/maps").read().split()
    print(json.dumps({"ways": ways, "maps": maps, "lines": sorted(lines)}))
"""
CLIPPED = [[1.0] * 3, [pytest.approx(1.04)] * 3]
NAMES = ("libcuda.so.1", "libnvrtc.so.12")
EVERY_WAY = """
folder = Path(os.environ["XDG_CACHE_HOME"]) / "paddle_adagc"
ways = {"first": clipped()}
(image,) = folder.glob("cuda-*")
image.write_bytes(image.read_bytes()[:5])
ways["damaged image"] = clipped()
assert image.read_bytes()[:-32] == b"emulated sm_90\\0"
raw = libpaddle._get_current_raw_stream
del libpaddle._get_current_raw_stream
libpaddle._get_current_stream = lambda device: type("S", (), {"cuda_stream": 0})
ways["Paddle before 3.3"] = clipped()
libpaddle._get_current_raw_stream = raw
os.environ["XDG_CACHE_HOME"] = str(image)  # no folder
ways["no cache"] = clipped()
os.environ["PADDLE_ADAGC_NATIVE"] = "0"
ways["switched off"] = clipped()
runtime.leave_to_operators(1, "rank 1")
assert runtime.load_module(1) is None
del os.environ["PADDLE_ADAGC_NATIVE"]
runtime.DRIVER = "libcuda.so.0"
ways["no driver"] = clipped()
runtime.DRIVER = "libcuda.so.1"
paddle.device.get_device = lambda: "cpu"
host.CUDA = 2
ways["no GPU"] = clipped()
tell(**ways)
"""


@pytest.fixture
def start(tmp_path):
    """Starts a process; files are copies of the emulated library."""

    def start(body, files, **changes):
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(backends.emulated_cuda()._name, tmp_path / file)
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + body],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(tmp_path),
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
                **changes,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        loaded = {Path(path) for path in found["maps"]}
        found["loaded"] = {
            str(path.relative_to(tmp_path))
            for path in loaded
            if path.is_relative_to(tmp_path) and path.parent.name != "cache"
        }
        return found, done.stderr

    return start


def lines_of_functions(code):
    """Numbers of the lines in functions, without those of their names."""
    if code.co_name != "<module>":
        found = {line for _, line in dis.findlinestarts(code) if line}
        yield from found - {code.co_firstlineno}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from lines_of_functions(constant)


def test_every_line_runs_with_libraries_on_the_path(start):
    found, stderr = start(EVERY_WAY, NAMES)
    assert {*NAMES} <= found["loaded"]
    ways = found["ways"]
    assert [clipped for clipped, _, _ in ways.values()] == [CLIPPED] * len(ways)
    assert {way: reason for way, (_, _, reason) in ways.items() if reason} == {
        "switched off": "PADDLE_ADAGC_NATIVE=0",
        "no driver": "libcuda.so.0: cannot open shared object file: No such "
        "file or directory",
    }
    assert {way for way, (_, launched, _) in ways.items() if not launched} == {
        *("switched off", "no driver", "no GPU")
    }
    assert stderr.count("the CUDA kernels cannot be used (libcuda.so.0") == 1
    source = runtime.SOURCE.with_name("runtime.py").read_text()
    code = compile(source, "runtime.py", "exec")
    texts = source.splitlines()
    missed = {*lines_of_functions(code)} - {*found["lines"]}
    assert [texts[line - 1] for line in sorted(missed)] == []


@pytest.mark.slow
def test_nvrtc_is_found_in_a_wheel_with_its_builtins(start, tmp_path):
    folder = "wheels/nvidia/cuda_nvrtc/lib"
    files = [f"{folder}/libnvrtc.so.12", f"{folder}/libnvrtc-builtins.so.12.9"]
    path = f"{tmp_path / 'wheels'}:{os.environ.get('PYTHONPATH', '')}"
    found, _ = start(
        "tell(x=clipped())", ["libcuda.so.1", *files], PYTHONPATH=path
    )
    assert found["ways"] == {"x": [CLIPPED, True, ""]}
    assert {"libcuda.so.1", *files} <= found["loaded"]
