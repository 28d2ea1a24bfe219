# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels and their launches on an emulated GPU.

The emulator compiles the same source with g++ and runs every thread of a block,
with its barriers and shuffles; the driver it stands for counts the calls.
"""

import ctypes
import gc
import math
import sys

import backends
import numpy as np
import paddle
import pytest
from core.clips.test_gradients import make_slice, scaled, wide
from helpers import assert_equal, make_parameters, no_waiting_for_the_device
from paddle.base import core

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.kernels import cuda as runtime
from paddle_adagc.kernels.cuda import launch
from paddle_adagc.kernels.cuda.launch import CHUNK


@pytest.fixture
def cuda(monkeypatch):
    return backends.use_cuda(monkeypatch)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("size", [1, 2, 5, 9, 511, CHUNK - 1, CHUNK + 17])
def test_scales_write_nothing_beside_a_slice(cuda, dtype, size):
    """At every distance from a multiple of 16 bytes."""
    for start in range(9):
        memory = paddle.arange(size + 40, dtype="float64").astype(dtype)
        expected = wide(memory)
        expected[start : start + size] /= 2
        inner = memory._slice(start, start + size)
        GradientList([inner]).scale_(paddle.to_tensor([0.5]), None)
        np.testing.assert_array_equal(wide(memory), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_16_bit_numbers_are_converted_as_paddle_does(cuda, dtype):
    numbers = np.arange(2**16, dtype=np.uint16)
    for h in (0.7, 0.001, 1.5):
        gradient = paddle.to_tensor(numbers.view(np.int16)).view(dtype)
        expected = wide(scaled(gradient, np.float32(h)))
        GradientList([gradient]).scale_(paddle.to_tensor([h]), None)
        np.testing.assert_array_equal(wide(gradient), expected)


def test_sums_depend_neither_on_addresses_nor_on_neighbours(cuda):
    values = np.random.default_rng(0).normal(size=CHUNK + 77)
    sums = set()
    for offset in range(5):
        for neighbours in range(3):
            tensor = make_slice(values, "float32", offset)
            others = [paddle.ones([CHUNK])] * neighbours
            norms = GradientList([*others, tensor]).squared_norms()
            sums.add(norms.numpy()[-1].tobytes())
    assert len(sums) == 1


@pytest.mark.parametrize("full", [1, 3, 100])
def test_chunks_of_a_block_change_no_bit(monkeypatch, cuda, full):
    """16 chunks, of tensors that are clipped, lost, missing or left alone."""
    monkeypatch.setattr(launch, "_FULL_GRID", full)
    rng = np.random.default_rng(0)
    sizes = [CHUNK * 3 + 5, 7, CHUNK * 5, CHUNK, 1, 2 * CHUNK + 1, 3, 9]
    values = [rng.normal(size=n).astype("float32") for n in sizes]
    h = np.array([0.3, 1, 0.7, 1, 0.2, 0.9, 0.5, 0.6], np.float32)
    gradients = [*map(paddle.to_tensor, values)]
    lost = paddle.to_tensor([False] * 7 + [True])
    listed = [*gradients[:4], None, *gradients[5:]]
    GradientList(listed).scale_(paddle.to_tensor(h), lost)
    h[4], h[7] = 1, 0
    assert_equal(gradients, map(np.multiply, values, h))


def test_lists_of_equal_shapes_do_not_mix_up_their_addresses(cuda):
    first, second = paddle.full([3], 1.0), paddle.full([3], 2.0)
    one, other = GradientList([first]), GradientList([second])
    half = paddle.to_tensor([0.5])
    assert one.squared_norms().item() == 3
    assert other.squared_norms().item() == 12
    one.scale_(half, None)
    assert (first.tolist(), second.tolist()) == ([0.5] * 3, [2.0] * 3)


def test_tables_grow_by_what_they_lack_and_others_are_made_for_the_rest(cuda):
    def copies(*listed):
        cuda.emulated_reset()
        norms = GradientList(listed).squared_norms()
        assert norms.tolist() == [
            0.0 if one is None else float(one.shape[0]) for one in listed
        ]
        return cuda.emulated_calls(b"cuMemcpyHtoDAsync")

    three, four = paddle.ones([3]), paddle.ones([4])
    assert copies(three, None, None) == 1
    assert copies(None, four, None) == 1  # beside the first
    assert copies(three, four, None) == copies(None, four, None) == 0
    assert copies(four, three, None) == 1  # other sizes
    assert copies(three.astype("float64"), four, None) == 1
    assert copies(three, four, None) == copies(four, None, None) == 0
    for size in range(5, 5 + runtime._MOST_TABLES):
        assert copies(paddle.ones([size]), None, None) == 1
    assert len(runtime._TABLES) == runtime._MOST_TABLES
    assert copies(four, None, None) == 1


def test_kept_tables_keep_no_gradient(cuda):
    gradient = paddle.ones([4])
    references = sys.getrefcount(gradient)
    GradientList([gradient]).squared_norms()
    gc.collect()
    assert sys.getrefcount(gradient) == references


def operators_called(step):
    """Names of Paddle's operators that a call of ``step`` runs."""
    paddle.set_flags({"FLAGS_low_precision_op_list": 1})
    core.clear_low_precision_op_list()
    try:
        step()
        return set(core.get_low_precision_op_list())
    finally:
        paddle.set_flags({"FLAGS_low_precision_op_list": 0})


@pytest.mark.parametrize(("count", "launches"), [(480, 5), (481, 6)])
def test_adaptive_step_is_a_few_launches(cuda, monkeypatch, count, launches):
    shapes = [[1 + i % 7] for i in range(count)]
    parameters = make_parameters(shapes)
    clip = ClipGradByAdaGC(t_start=1)
    for step in range(5):
        pairs = [
            (p, paddle.full(s, 3.0**step))
            for p, s in zip(parameters, shapes, strict=True)
        ]
        cuda.emulated_reset()
        if step < 3:  # copies the tables to the device; reads the start
            clip(pairs)
            assert cuda.emulated_calls(b"adaptive_step") == (step >= 1)
            continue
        with monkeypatch.context() as patch:
            patch.setattr(paddle, "to_tensor", None)
            with no_waiting_for_the_device(patch):
                called = operators_called(lambda: clip(pairs))  # noqa: B023
        assert {name.split("_")[0] for name in called} == {"empty"}
        assert cuda.emulated_calls(b"cuMemcpyHtoDAsync") == 0
        assert cuda.emulated_calls(b"cuLaunchKernel") == launches
        found = [norm["norm"] for norm in clip.metrics()["tensors"].values()]
        sizes = [shape[0] for shape in shapes]
        np.testing.assert_allclose(found, 3.0**step * np.sqrt(sizes), 1e-6)
        for _, gradient in pairs:
            assert 0 < gradient.max() < 3.0**step


def test_sums_of_2_to_the_33_values(cuda):
    """Norms of three such tensors from the sums of their chunks."""
    count = 2**33 // CHUNK
    rows = np.full([3, count], 0.1, np.float32)
    rows[1] = 2.0**-25  # each is lost beside the first in float32
    rows[1, 0] = 1.0
    rows[2] = np.random.default_rng(0).lognormal(sigma=3, size=count)
    stops = np.arange(1, 4, dtype=np.int32) * count
    spans = np.stack([stops - count, stops], 1)
    out = np.zeros(3, np.float32)
    runtime.load_kernels(0).launch(
        "finish_norms",
        1,
        *(ctypes.c_void_p(x.ctypes.data) for x in (spans, rows)),
        ctypes.c_int(3),
        ctypes.c_void_p(out.ctypes.data),
    )
    exact = [math.fsum(row.tolist()) for row in rows]
    np.testing.assert_allclose(out, exact, rtol=2.0**-23)


def test_a_view_of_no_values_is_neither_read_nor_written(cuda):
    """It has the address of what lies there."""
    parameters = make_parameters([[4], [8]])
    clip, memory = ClipGradByAdaGC(t_start=0), paddle.arange(12.0)
    clip([(p, paddle.ones(p.shape)) for p in parameters])
    gradients = paddle.full([4], 100.0), memory[4:4]
    clip([*zip(parameters, gradients, strict=True)])
    assert clip.metrics()["tensors"][parameters[1].name]["norm"] == 0
    np.testing.assert_array_equal(memory.numpy(), np.arange(12.0))
