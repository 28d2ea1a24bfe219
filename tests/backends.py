# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the clip on one backend, the CUDA kernels on an emulated GPU."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import paddle
import pytest
from paddle.base import libpaddle

from paddle_adagc import kernels
from paddle_adagc.kernels import cuda as runtime
from paddle_adagc.kernels import host, operators
from paddle_adagc.kernels.cuda import launch
from paddle_adagc.kernels.host import CPU, HostTensors
from paddle_adagc.kernels.operators import OperatorTensors

FOLDER = Path(__file__).parent / "core/kernels/emulator"
FLAGS = [
    *("-O2", "-std=c++17", "-ffp-contract=off", "-U_FORTIFY_SOURCE"),
    *launch.DEFINES,
    f"-I{Path(kernels.__file__).parent}",
]


def compile_emulated(source: str) -> bytes:
    """Compile a CUDA driver and NVRTC for a CPU, with this kernel source."""
    if shutil.which("g++") is None:
        pytest.skip("the emulated GPU needs g++")
    with tempfile.TemporaryDirectory() as folder:
        kernel, library = (
            Path(folder, "cuda/multi_tensor.cu"),
            f"{folder}/cuda.so",
        )
        kernel.parent.mkdir()  # found before the package's
        kernel.write_text(source)
        command = ["g++", f"-I{folder}", *FLAGS, "-shared", "-fPIC"]
        files = [FOLDER / "driver.cpp", FOLDER / "nvrtc.cpp"]
        subprocess.run([*command, *files, "-o", library], check=True)
        return Path(library).read_bytes()


@functools.cache
def emulated_cuda() -> ctypes.CDLL:
    """The emulated driver with the kernels as they are, compiled once."""
    source = launch.SOURCE.read_text()
    files = [*FOLDER.iterdir(), host.SOURCE.with_name("numbers.h")]
    parts = [source, *FLAGS, *(file.read_text() for file in sorted(files))]
    make = functools.partial(compile_emulated, source)
    return host.load_code(host.keep("emulator", parts, make))


def use_cuda(monkeypatch, cuda: ctypes.CDLL | None = None) -> ctypes.CDLL:
    """Let tensors in host memory look as if they were on a GPU."""
    cuda = cuda or emulated_cuda()
    cuda.emulated_reset()
    monkeypatch.setattr(paddle.device, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(host, "CUDA", CPU)
    monkeypatch.setattr(
        libpaddle, "_get_current_raw_stream", lambda device: 0, raising=False
    )
    monkeypatch.setattr(runtime, "DRIVER", cuda._name)
    monkeypatch.setattr(launch, "load_nvrtc", lambda major: cuda)
    monkeypatch.setattr(runtime, "_LOADED", {})
    monkeypatch.setattr(runtime, "_TABLES", [])
    # What it cannot take, strided gradients, is left to the operators.
    monkeypatch.setattr(
        kernels, "BACKENDS", (runtime.DeviceTensors, OperatorTensors)
    )
    return cuda


def use(name: str, monkeypatch) -> None:
    """Leave one backend, and the operators for what it cannot take."""
    if name == "cuda":
        use_cuda(monkeypatch)
    elif name == "host":
        assert host.load_library() is not None, "g++ is needed"
        monkeypatch.setattr(kernels, "BACKENDS", (HostTensors, OperatorTensors))
    else:  # as on a device, where reading h would make the host wait
        monkeypatch.setattr(operators, "is_in_host_memory", lambda h: False)
        monkeypatch.setattr(kernels, "BACKENDS", (OperatorTensors,))
