# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip step costs the host, beside AdamW's own loop over the tensors.

The thread's processor time on tensors of one value each. For the CUDA kernels
a driver that returns at once stands in: nothing runs on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
import time
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import paddle
from paddle.base import libpaddle

from paddle_adagc import ClipGradByAdaGC, kernels
from paddle_adagc.kernels import host
from paddle_adagc.kernels.cuda import driver, runtime, tensors
from paddle_adagc.lab.markdown import markdown_table

ADAMW = "AdamW"
BACKENDS: dict[str, tuple[Any, ...]] = {
    "CUDA kernels": (tensors.DeviceTensors,),
    "C++ loops": (host.HostTensors,),
}
_UNTIMED = 5


@contextlib.contextmanager
def use(backend: str) -> Iterator[None]:
    """Leave one backend of the clip; the kernels with a driver of no calls."""
    nothing = ctypes.CDLL(None).Py_IsNone  # returns 0 for what these get
    calls = types.SimpleNamespace(
        cuInit=nothing,
        cuModuleGetFunction=nothing,
        cuLaunchKernel=nothing,
        cuMemcpyHtoDAsync_v2=nothing,
    )
    module = driver.Module(driver.Driver(calls), ctypes.c_void_p())
    patch = mock.patch.object
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(patch(kernels, "BACKENDS", BACKENDS[backend]))
        if backend == "CUDA kernels":
            enter(patch(paddle.device, "get_device", lambda: "gpu:0"))
            enter(patch(host, "CUDA", host.CPU))  # where the tensors lie
            enter(patch(runtime, "_LOADED", {0: module}))
            name = "_get_current_raw_stream"
            enter(patch(libpaddle, name, lambda device: 0, create=True))
        yield


def compare(num_tensors: int, repetitions: int) -> dict[str, dict[str, float]]:
    """Time AdamW's step without a clip, and the clip alone by each backend.

    The tensors have one value each and lie on the CPU. Gives name -> ``ms``,
    the median, and ``of_adamw``, the median of the ratios in single rounds.
    """
    parameters = [
        paddle.create_parameter([1], "float32") for _ in range(num_tensors)
    ]
    optimizer = paddle.optimizer.AdamW(parameters=parameters)
    paddle.add_n(parameters).backward()
    pairs = [(p, p.grad) for p in parameters]
    clips = {name: ClipGradByAdaGC(t_start=1) for name in BACKENDS}
    seconds: dict[str, list[float]] = {ADAMW: [], **{n: [] for n in clips}}
    gc.collect()
    gc.disable()
    try:
        for _ in range(repetitions + _UNTIMED):
            begun = time.thread_time()
            optimizer.step()
            seconds[ADAMW].append(time.thread_time() - begun)
            for name, clip in clips.items():
                for parameter, gradient in pairs:  # as AdamW does before it
                    parameter.stop_gradient, gradient.is_selected_rows()
                with use(name):
                    begun = time.thread_time()
                    clip(pairs)
                    seconds[name].append(time.thread_time() - begun)
    finally:
        gc.enable()
    loop = seconds[ADAMW][_UNTIMED:]
    return {
        name: {
            "ms": 1e3 * statistics.median(times[_UNTIMED:]),
            "of_adamw": statistics.median(
                mine / theirs
                for mine, theirs in zip(times[_UNTIMED:], loop, strict=True)
            ),
        }
        for name, times in seconds.items()
    }


def to_markdown(found: dict[int, dict[str, dict[str, float]]]) -> str:
    """Pipe table, a line per number of tensors and name."""
    return markdown_table(
        ["tensors", "host time of", "ms", "of AdamW's"],
        [
            (f"{count:,}", name, f"{row['ms']:.2f}", f"{row['of_adamw']:.3f}")
            for count, rows in found.items()
            for name, row in rows.items()
        ],
    )
