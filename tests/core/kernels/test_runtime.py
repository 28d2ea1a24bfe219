# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Clip steps in a process that finds a driver and NVRTC as on a GPU machine.

Both are the emulator's, under their real names: one on the library path, the
other in a package as wheels have it. Only Paddle is told what to answer.
"""

import json
import os
import shutil
from pathlib import Path

import backends
import pytest
from helpers import run_python

CLIP = """
import ctypes, json
import paddle
from paddle.base import libpaddle

paddle.device.get_device = lambda: "gpu:0"
paddle.version.cuda = lambda: "12.9"
libpaddle._get_current_raw_stream = lambda device: 0

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc import kernels
from paddle_adagc.kernels import host
from paddle_adagc.kernels import cuda as runtime

host.CUDA = host.CPU  # where tensors lie
kernels.BACKENDS = kernels.BACKENDS[1:]  # else those in host memory
cuda = ctypes.CDLL("libcuda.so.1")
clip = ClipGradByAdaGC(t_start=0)
weight = paddle.create_parameter([3], "float32")
pairs = [(weight, paddle.full([3], norm)) for norm in (1.0, 2.0)]
cuda.emulated_reset()
clipped = [clip([pair])[0][1].tolist() for pair in pairs]
launches = cuda.emulated_calls(b"cuLaunchKernel")
maps = open("/proc/self/maps").read().split()
print(json.dumps([clipped, launches > 0, runtime.why_not(0), maps]))
"""


def test_driver_and_nvrtc_are_found_by_their_names(tmp_path):
    wheel = "wheels/nvidia/cuda_nvrtc/lib"
    files = ["libcuda.so.1", f"{wheel}/libnvrtc.so.12"]
    files.append(f"{wheel}/libnvrtc-builtins.so.12.9")
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(backends.emulated_cuda()._name, tmp_path / file)
    path = f"{tmp_path / 'wheels'}:{os.environ.get('PYTHONPATH', '')}"
    done = run_python(
        *(tmp_path, "-c", CLIP),
        LD_LIBRARY_PATH=str(tmp_path),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
        PYTHONPATH=path,
    )
    assert done.returncode == 0, done.stderr
    *found, maps = json.loads(done.stdout.splitlines()[-1])
    clipped = [[1.0] * 3, [pytest.approx(1.04)] * 3]
    assert found == [clipped, True, ""]
    assert {str(Path(tmp_path, file)) for file in files} <= {*maps}
