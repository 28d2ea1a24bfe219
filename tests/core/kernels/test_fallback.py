# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What leaves the work to Paddle's operators instead of the CUDA kernels."""

import ctypes
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import backends
import paddle
import pytest
from paddle import _C_ops

from paddle_adagc.clips import gradients
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.kernels import cuda as runtime
from paddle_adagc.kernels import host
from paddle_adagc.kernels.cuda import adaptive_step, launch
from paddle_adagc.kernels.host import CUDA, NO_TENSOR
from paddle_adagc.kernels.operators import OperatorTensors


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    """The emulated libraries, with tensors on their GPU and an empty cache."""
    cuda = backends.use_cuda(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cuda.emulated_compilations()  # counts from here
    return cuda


@pytest.fixture
def elsewhere(monkeypatch, cuda):
    """The same, but tensors are not on their GPU."""
    monkeypatch.setattr(host, "CUDA", CUDA)
    return cuda


def assert_operators():
    (part,) = gradients.split([paddle.ones([2])])
    assert isinstance(part, OperatorTensors)
    assert part.squared_norms().tolist() == [2.0]


@pytest.mark.parametrize(
    ("name", "rocm", "device"),
    [
        ("cpu", False, None),
        ("gpu:3", False, 3),
        ("gpu:0", True, None),
        ("xpu:0", False, None),
        ("gpu_pinned", False, None),
    ],
)
def test_only_nvidia_devices_are_asked_for_cuda(
    monkeypatch, name, rocm, device
):
    host.load_library()  # is kept
    monkeypatch.setattr(paddle.device, "get_device", lambda: name)
    monkeypatch.setattr(paddle, "is_compiled_with_rocm", lambda: rocm)
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert runtime.current_device() == device
    if device is None:
        (part,) = gradients.split([paddle.ones([2])])
        assert isinstance(part, host.HostTensors) == (name == "cpu")


def old_library(*arguments):
    raise AttributeError("undefined symbol: cuInit")


def no_nvrtc(major):
    raise OSError("NVRTC was not found")


@pytest.mark.parametrize(
    ("place", "name", "value", "message"),
    [
        (os, "environ", {"PADDLE_ADAGC_NATIVE": "0"}, "PADDLE_ADAGC_NATIVE=0"),
        (runtime, "DRIVER", "libcuda.so.none", "libcuda.so.none"),
        (launch, "load_nvrtc", no_nvrtc, "NVRTC was not found"),
        (launch, "Kernels", old_library, "undefined symbol: cuInit"),
        (launch, "SOURCE", Path(os.devnull), "for sm_90: error: no kernel"),
        (runtime, "libpaddle", SimpleNamespace(), "_get_current_stream"),
        (None, "cuInit", 222, "cuInit returned CUDA_ERROR_EMULATED (222)"),
        (None, "cuModuleLoadData", 222, "cuModuleLoadData returned CUDA_"),
        (None, "cuCtxSetCurrent", 222, "cuCtxSetCurrent returned CUDA_"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_is_missing_the_operators_are_used(
    monkeypatch, caplog, elsewhere, tmp_path, place, name, value, message
):
    if place is None:
        elsewhere.emulated_failure(name.encode(), value)
    else:
        monkeypatch.setattr(place, name, value)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert_operators()
    assert [message in r.getMessage() for r in caplog.records] == (
        [] if place is os else [True]
    )
    assert message in runtime.why_not(0)
    is_compiled = place is None and name != "cuInit"
    assert len([*tmp_path.glob("paddle_adagc/*")]) == is_compiled


def test_image_is_compiled_once(cuda, tmp_path):
    for _ in range(2):
        assert isinstance(runtime.load_kernels(0), launch.Kernels)
        assert runtime.why_not(0) == ""
        runtime._LOADED.clear()
    assert cuda.emulated_compilations() == 1
    (image,) = (tmp_path / "paddle_adagc").iterdir()
    assert image.read_bytes()[:-32] == b"emulated sm_90\0"


def test_the_stream_has_two_names(monkeypatch):
    """Paddle 3.3 has the first, earlier versions the second alone."""
    library = SimpleNamespace(
        _get_current_stream=lambda d: SimpleNamespace(cuda_stream=7 + d)
    )
    monkeypatch.setattr(runtime, "libpaddle", library)
    assert runtime.current_stream(1) == 8
    library._get_current_raw_stream = lambda device: 40 + device
    assert runtime.current_stream(1) == 41


def rule_step(norm, gamma=None, counts=None):
    rule = {"lambda_rel": 1.0, "beta": 0.9, "zeroes_nonfinite": True}
    gamma = norm if gamma is None else gamma
    if counts is None:
        counts = paddle.zeros(norm.shape, "int32")
    return adaptive_step(norm, gamma, counts, **rule)


def test_the_rule_runs_on_operators_where_its_vectors_are_not(
    monkeypatch, cuda
):
    ones = paddle.ones([2])
    assert rule_step(ones) is not None
    for wrong in (
        [paddle.ones([0])],
        [ones.astype("float64"), ones],
        [ones, ones.astype("float16")],
        [ones, ones, paddle.zeros([2], "int64")],
        [ones, paddle.ones([3])],
    ):
        assert rule_step(*wrong) is None
    monkeypatch.setattr(host, "CUDA", CUDA)  # the tensors lie elsewhere
    assert rule_step(ones) is None
    assert_operators()


def test_kernels_run_in_the_context_of_their_device(cuda):
    first, second = runtime.load_kernels(0), runtime.load_kernels(1)
    assert None not in (first, second)
    assert rule_step(paddle.ones([2])) is not None
    foreign = ctypes.c_void_p(1)
    cuda.cuCtxSetCurrent(foreign)
    assert rule_step(paddle.ones([2])) is not None
    cuda.cuCtxSetCurrent(foreign)
    with pytest.raises(launch.CudaError, match=r"launch of .* \(201\)"):
        second.launch("adaptive_step", 1)


def test_failing_launch_says_where_it_may_come_from(cuda):
    cuda.emulated_failure(b"cuLaunchKernel", 700)
    with pytest.raises(launch.CudaError, match=r"launch of .*700.*earlier"):
        GradientList([paddle.ones([2])]).squared_norms()


def test_paddle_whose_cast_writes_nowhere_scales_in_place(monkeypatch):
    """Paddle before 3.3."""
    cast = _C_ops.cast
    monkeypatch.setattr(
        _C_ops, "cast", lambda x, dtype, out=None: cast(x, dtype)
    )
    gradient = paddle.full([3], 3.0, "bfloat16")
    address = gradient.data_ptr()
    listed = OperatorTensors([gradient], NO_TENSOR)
    listed.scale_(paddle.to_tensor([0.5]), None)
    assert gradient.data_ptr() == address
    assert gradient.astype("float32").tolist() == [1.5] * 3
