# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The compiled loops: built once, switched off, and done without."""

import numpy as np
import paddle
import pytest
from helpers import make_parameters, strided_gradient

from paddle_adagc.kernels import host
from paddle_adagc.kernels.host import load_library

SHAPES = [[], [1], [3], [2, 3], [4, 1, 2], [0, 3]]


def tensors():
    made = [
        paddle.ones(shape).astype(dtype)
        for shape in SHAPES
        for dtype in ("float32", "float64", "bfloat16", "float16", "int32")
    ]
    memory = paddle.ones([8, 4], "bfloat16")
    _, strided = strided_gradient(1.0)
    (parameter,) = make_parameters([[5]])
    views = [memory[2:5], memory[:, 1], memory.T, memory._slice(1, 3), strided]
    return [*made, *views, None, parameter]


def slow(monkeypatch):
    monkeypatch.setattr(host, "_fast_reader", lambda: None)


def test_fast_and_slow_reading_agree(monkeypatch):
    read = tensors()
    exchange = getattr(paddle.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None or load_library() is None:
        pytest.skip("Paddle before 3.3, or no compiler")
    fast = np.full(len(read), host.NO_TENSOR)
    assert host._fast_reader()(read, fast)
    slow(monkeypatch)
    np.testing.assert_array_equal(fast, host.describe(read))


@pytest.mark.parametrize("is_fast", [True, False])
def test_facts(monkeypatch, is_fast):
    if not is_fast:
        slow(monkeypatch)
    memory = paddle.zeros([6, 2], "float16")
    read = [memory, None, memory[2:], memory.T, paddle.ones([2], "int64")]
    known = host.describe(read)
    start = memory.data_ptr()
    assert known["address"].tolist()[:4] == [start, 0, start + 8, start]
    assert known["size"].tolist() == [12, 0, 8, 12, 2]
    assert known["dtype"].tolist() == [3, -1, 3, -1, -1]
    assert known["device"].tolist() == [256, 0, 256, 256, 256]


def test_what_the_fast_reader_refuses_is_read_slowly(monkeypatch):
    read = [paddle.ones([3]), paddle.ones([2])]
    expected = host.describe(read)
    monkeypatch.setattr(
        host, "_fast_reader", lambda: lambda tensors, descriptors: False
    )
    np.testing.assert_array_equal(host.describe(read), expected)


@pytest.mark.parametrize(
    ("device", "is_rocm", "memory"),
    [
        ("cpu", False, 1 << 8),
        ("gpu:0", False, 2 << 8),
        ("gpu:3", False, (2 << 8) + 3),
        ("gpu:3", True, 0),
        ("xpu:0", False, 0),
    ],
)
def test_memory_has_the_number_of_dlpack(monkeypatch, device, is_rocm, memory):
    monkeypatch.setattr(paddle.device, "get_device", lambda: device)
    monkeypatch.setattr(paddle, "is_compiled_with_rocm", lambda: is_rocm)
    assert host.current_memory() == memory


class OnDevice:
    """Stands for a tensor on the GPU of this number; None: another device."""

    dtype, shape, place = paddle.float16, [2, 3], property(lambda self: self)

    def __init__(self, number):
        self.number = number

    def is_cpu_place(self):
        return False

    def is_gpu_place(self):
        return self.number is not None

    def gpu_device_id(self):
        return self.number

    def is_contiguous(self):
        return True

    def data_ptr(self):
        return 64


def test_tensors_on_devices(monkeypatch):
    slow(monkeypatch)
    known = host.describe([OnDevice(3), OnDevice(None)])
    assert known.tolist() == [(64, 6, 3, (2 << 8) + 3), (64, 6, 3, 0)]


@pytest.fixture
def no_cached_reader():
    """A reader that is looked for anew."""
    host._fast_reader.cache_clear()
    yield
    host._fast_reader.cache_clear()


@pytest.mark.usefixtures("no_cached_reader")
def test_without_dlpack_s_exchange_there_is_no_fast_reader(monkeypatch):
    monkeypatch.setattr(
        paddle.Tensor, "__dlpack_c_exchange_api__", None, raising=False
    )
    assert host._exchange_function() is None
    assert host._fast_reader() is None


@pytest.mark.usefixtures("no_cached_reader")
def test_without_the_library_there_is_no_fast_reader(monkeypatch):
    monkeypatch.setattr(host, "load_library", lambda: None)
    assert host._fast_reader() is None
