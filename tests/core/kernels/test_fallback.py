# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What leaves the work to Paddle's operators instead of the CUDA kernels."""

import ctypes
import logging
import os
import types
from pathlib import Path

import backends
import numpy as np
import paddle
import pytest
from helpers import strided_gradient
from paddle import _C_ops

from paddle_adagc import kernels
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.kernels import cuda as runtime
from paddle_adagc.kernels import host, operators
from paddle_adagc.kernels.cuda import adaptive_step, launch
from paddle_adagc.kernels.host import CUDA, NO_TENSOR
from paddle_adagc.kernels.operators import OperatorTensors


def pretend_gpu(monkeypatch, *, device="gpu:0", rocm=False):
    monkeypatch.setattr(paddle.device, "get_device", lambda: device)
    monkeypatch.setattr(paddle, "is_compiled_with_rocm", lambda: rocm)


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    backends.emulated_cuda()  # is kept in the user's own cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(runtime, "_LOADED", {})


def assert_operators():
    (part,) = kernels.split([paddle.ones([2])])
    assert isinstance(part, OperatorTensors)
    assert part.squared_norms().tolist() == [2.0]


@pytest.mark.parametrize(
    ("device", "rocm", "memory"),
    [
        ("cpu", False, 1 << 8),
        ("gpu:3", False, (2 << 8) + 3),
        ("gpu:0", True, 0),
        ("xpu:0", False, 0),
        ("gpu_pinned", False, 0),
    ],
)
def test_only_nvidia_devices_are_asked_for_cuda(
    monkeypatch, device, rocm, memory
):
    pretend_gpu(monkeypatch, device=device, rocm=rocm)
    assert host.current_memory() == memory
    assert runtime.current_device() == (3 if device == "gpu:3" else None)
    if runtime.current_device() is None:
        host.load_library()  # that of the host is kept
        monkeypatch.setattr(ctypes, "CDLL", None)
        (part,) = kernels.split([paddle.ones([2])])
        is_host = isinstance(part, host.HostTensors)
        assert is_host == (device == "cpu")


def test_switch(monkeypatch):
    pretend_gpu(monkeypatch)
    monkeypatch.setenv("PADDLE_ADAGC_NATIVE", "0")
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert_operators()
    assert runtime.why_not(0) == "PADDLE_ADAGC_NATIVE=0"


def test_gpu_build_without_a_driver_warns_once(monkeypatch, caplog):
    pretend_gpu(monkeypatch)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert_operators()
    assert len(caplog.records) == 1
    assert "libcuda.so.1" in caplog.text


@pytest.fixture
def cuda(monkeypatch):
    """The emulated libraries, for tensors that are not on their GPU."""
    cuda = backends.emulated_cuda()
    cuda.emulated_reset()
    cuda.emulated_compilations()
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(runtime, "DRIVER", cuda._name)
    monkeypatch.setattr(launch, "load_nvrtc", lambda major: cuda)
    return cuda


def old_library(*arguments):
    raise AttributeError("undefined symbol: cuInit")


def no_nvrtc(major):
    raise OSError("NVRTC was not found")


@pytest.mark.parametrize(
    ("place", "name", "value", "message"),
    [
        (launch, "load_nvrtc", no_nvrtc, "NVRTC was not found"),
        (launch, "Kernels", old_library, "undefined symbol: cuInit"),
        (
            launch,
            "SOURCE",
            Path(os.devnull),
            "compile for sm_90: error: no ker",
        ),
        (runtime, "libpaddle", types.SimpleNamespace(), "_get_current_stream"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_is_missing_the_operators_are_used(
    monkeypatch, caplog, cuda, tmp_path, place, name, value, message
):
    monkeypatch.setattr(place, name, value)
    assert_operators()
    assert message in caplog.text
    assert message in runtime.why_not(0)
    assert not [*tmp_path.glob("paddle_adagc/*")]
    runtime.leave_to_operators(1, "rank 1")  # where there is no other
    assert runtime.load_kernels(1) is None


@pytest.mark.parametrize(
    "call", ["cuInit", "cuModuleLoadData", "cuCtxSetCurrent"]
)
def test_driver_that_fails(caplog, cuda, call):
    cuda.emulated_failure(call.encode(), 222)
    assert_operators()
    assert f"{call} returned CUDA_ERROR_EMULATED (222)" in caplog.text


def test_image_is_compiled_once(cuda, tmp_path):
    for _ in range(2):
        assert isinstance(runtime.load_kernels(0), launch.Kernels)
        assert runtime.why_not(0) == ""
        runtime._LOADED.clear()
    assert cuda.emulated_compilations() == 1
    (image,) = (tmp_path / "paddle_adagc").iterdir()
    assert image.read_bytes()[:-32] == b"emulated sm_90\0"
    image.write_bytes(b"emul")  # damaged
    assert runtime.load_kernels(0) is not None
    assert cuda.emulated_compilations() == 1
    assert image.read_bytes()[:-32] == b"emulated sm_90\0"


def test_a_cache_that_cannot_be_written_is_done_without(cuda, tmp_path):
    (tmp_path / "paddle_adagc").write_text("no folder")
    assert runtime.load_kernels(0) is not None
    assert cuda.emulated_compilations() == 1


def test_the_stream_has_two_names(monkeypatch):
    """Paddle 3.3 has the first, earlier versions the second alone."""
    library = types.SimpleNamespace(
        _get_current_stream=lambda d: types.SimpleNamespace(cuda_stream=7 + d)
    )
    monkeypatch.setattr(runtime, "libpaddle", library)
    assert runtime.current_stream(1) == 8
    library._get_current_raw_stream = lambda device: 40 + device
    assert runtime.current_stream(1) == 41


def test_a_gpu_older_than_nvrtc_is_named():
    class Newer:
        def nvrtcGetNumSupportedArchs(self, count):
            count._obj.value = 2
            return 0

        def nvrtcGetSupportedArchs(self, known):
            known[:] = 75, 80
            return 0

    assert launch.pick_target(Newer(), 80) == "sm_80"
    assert launch.pick_target(Newer(), 89) == "compute_80"
    with pytest.raises(launch.CudaError, match=r"sm_75 and newer, .* sm_70"):
        launch.pick_target(Newer(), 70)


def test_the_rule_runs_on_operators_where_its_vectors_are_not(monkeypatch):
    backends.use_cuda(monkeypatch)
    rule = {"lambda_rel": 1.0, "beta": 0.9, "zeroes_nonfinite": True}

    def step(size):
        ones, zeros = paddle.ones([size]), paddle.zeros([size], "int32")
        return adaptive_step(ones, ones, zeros, **rule)

    assert step(2) is not None
    assert step(0) is None
    assert runtime.load_kernels(0) is not None
    ones, counts = paddle.ones([2]), paddle.zeros([2], "int32")
    wrong = [
        (ones.astype("float64"), ones, counts),
        (ones, ones.astype("float16"), counts),
        (ones, ones, counts.astype("int64")),
        (ones, paddle.ones([3]), counts),
    ]
    assert [adaptive_step(*vectors, **rule) for vectors in wrong] == [None] * 4
    monkeypatch.setattr(host, "CUDA", CUDA)  # the vectors lie elsewhere
    assert step(2) is None


def test_kernels_run_in_the_context_of_their_device(monkeypatch):
    cuda = backends.use_cuda(monkeypatch)
    first, second = runtime.load_kernels(0), runtime.load_kernels(1)
    assert None not in (first, second)
    ones, counts = paddle.ones([2]), paddle.zeros([2], "int32")
    rule = {"lambda_rel": 1.0, "beta": 0.9, "zeroes_nonfinite": True}
    assert adaptive_step(ones, ones, counts, **rule) is not None
    foreign = ctypes.c_void_p(1)
    cuda.cuCtxSetCurrent(foreign)
    assert adaptive_step(ones, ones, counts, **rule) is not None
    cuda.cuCtxSetCurrent(foreign)
    with pytest.raises(launch.CudaError, match=r"launch of .* \(201\)"):
        second.launch("adaptive_step", 1, 0)


def test_tensor_that_is_not_on_the_gpu_goes_to_the_operators(cuda):
    assert runtime.DeviceTensors.is_available()
    assert_operators()


def test_failing_launch_says_where_it_may_come_from(monkeypatch):
    cuda = backends.use_cuda(monkeypatch)
    cuda.emulated_failure(b"cuLaunchKernel", 700)
    with pytest.raises(launch.CudaError, match=r"launch of .*700.*earlier"):
        GradientList([paddle.ones([2])]).squared_norms()


def test_operators_on_a_cpu_leave_what_needs_no_scaling(monkeypatch):
    scaled = []
    monkeypatch.setattr(
        operators, "_scale_", lambda tensor, factor: scaled.append(tensor)
    )
    first, second, lost = (paddle.full([2], np.nan) for _ in range(3))
    OperatorTensors([first, second, lost], NO_TENSOR).scale_(
        paddle.to_tensor([1.0, 0.5, 1.0]),
        paddle.to_tensor([False, False, True]),
    )
    assert [tensor is second for tensor in scaled] == [True]
    assert lost.tolist() == [0.0, 0.0]
    assert np.isnan(first.numpy()).all()


@pytest.mark.parametrize("is_lost", [False, True])
def test_operators_are_given_contiguous_values(monkeypatch, is_lost):
    given = []

    def watch(name):
        operator = getattr(_C_ops, name)

        def watched(tensor, *arguments):
            given.append(tensor.is_contiguous())
            return operator(tensor, *arguments)

        monkeypatch.setattr(_C_ops, name, watched)

    _, gradient = strided_gradient(np.nan if is_lost else 1.0)
    before = gradient.numpy()
    for name in ("squared_l2_norm", "multiply_", "masked_fill_"):
        watch(name)
    listed = OperatorTensors([gradient], NO_TENSOR)
    listed.squared_norms()
    listed.scale_(paddle.to_tensor([0.5]), paddle.to_tensor([is_lost]))
    assert given == [True] * (3 if is_lost else 2)
    np.testing.assert_array_equal(
        gradient.numpy(), 0 if is_lost else 0.5 * before
    )


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
