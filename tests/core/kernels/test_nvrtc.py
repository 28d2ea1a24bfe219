# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kernels as NVRTC compiles them for GPUs; none is needed for that."""

import importlib.metadata
import re

import pytest
from helpers import slow_but

from paddle_adagc.kernels.cuda import launch

SOURCE = launch.SOURCE.read_text()
WHEELS = {"12": "nvidia-cuda-nvrtc-cu12", "13": "nvidia-cuda-nvrtc"}


@pytest.fixture(scope="module", params=WHEELS)
def nvrtc(request):
    try:
        importlib.metadata.version(WHEELS[request.param])
    except importlib.metadata.PackageNotFoundError as error:
        pytest.skip(f"pip install -e '.[nvrtc]': {error}")
    found = launch.load_nvrtc(request.param)
    assert str(launch.nvrtc_version(found)[0]) == request.param
    return found


_FUNCTION = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers",
    re.DOTALL,
)


REGISTERS = {75: 64, 80: 32, 86: 40, 89: 40, 90: 32, 100: 32, 120: 40}
"""Registers of a multiprocessor over the threads that it holds."""


@pytest.mark.parametrize("arch", slow_but(90, REGISTERS))
def test_kernels_compile_without_spills(nvrtc, arch):
    registers = REGISTERS[arch]
    if launch.pick_target(nvrtc, arch) != f"sm_{arch}":
        pytest.skip(f"this NVRTC is older than sm_{arch}")
    image, log = launch.compile_source(nvrtc, SOURCE, f"sm_{arch}")
    assert image.startswith(b"\x7fELF")
    functions = {f["name"]: f for f in _FUNCTION.finditer(log)}
    dtypes = ("float32", "float64", "bfloat16", "float16")
    assert set(functions) == {
        "store_addresses",
        "finish_norms",
        "adaptive_step",
        *(f"{kind}_{d}" for kind in ("partial_norm", "scale") for d in dtypes),
    }
    for name, function in functions.items():
        assert function["stores"] == function["loads"] == "0", name
        is_scale = name.startswith("scale")  # 3 blocks of 512 threads suffice
        most = max(registers, 40) if is_scale else registers
        assert int(function["registers"]) <= most, name


def test_values_move_16_bytes_at_a_time(nvrtc):
    ptx, _ = launch.compile_source(nvrtc, SOURCE, "compute_80")
    wide = rb"\.global\.v(4.\w32|2.\w64)"
    for body in re.split(rb"\.entry ", ptx)[1:]:
        name = body[: body.index(b"(")]
        if name.startswith((b"partial_norm", b"scale")):
            assert re.search(rb"ld" + wide, body), name
            assert b"ld.v" not in body, name  # of any kind of memory
        if name.startswith(b"scale"):
            assert re.search(rb"st" + wide, body), name


def test_newer_gpu_than_nvrtc_knows_gets_ptx_and_an_older_one_is_named(nvrtc):
    with pytest.raises(launch.CudaError, match=r"and newer, .* sm_20"):
        launch.pick_target(nvrtc, 20)
    assert launch.pick_target(nvrtc, 90) == "sm_90"
    target = launch.pick_target(nvrtc, 990)
    assert target.startswith("compute_")
    image, _ = launch.compile_source(nvrtc, SOURCE, target)
    assert b".version" in image


def test_error_carries_nvrtc_s_log(nvrtc):
    with pytest.raises(launch.CudaError, match="storage class"):
        launch.compile_source(nvrtc, "nonsense", "sm_90")
