# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip step costs the host, beside AdamW's own loop over the tensors.

The thread's processor time on tensors of one value each. For the CUDA kernels
a driver that returns at once stands in: nothing runs on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import time
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import paddle

from adagc_lab.markdown import markdown_table
from paddle_adagc import ClipGradByAdaGC, kernels
from paddle_adagc.kernels import cuda, host
from paddle_adagc.kernels.cuda import launch

ADAMW = "AdamW"
BACKENDS: dict[str, tuple[Any, ...]] = {
    "CUDA kernels": (cuda.DeviceTensors,),
    "C++ loops": (host.HostTensors,),
}
_UNTIMED = 5


@functools.cache
def _kernels_without_calls() -> launch.Kernels:
    names = ["Init", "DeviceGet", "CtxGetCurrent", "ModuleGetFunction"]
    names += ["LaunchKernel", "MemcpyHtoDAsync_v2"]
    nothing = ctypes.CDLL(None).Py_IsNone  # returns 0 for what these get
    calls = types.SimpleNamespace(**{f"cu{name}": nothing for name in names})
    return launch.Kernels(calls, 0, lambda device: 0, cuda.empty)


@contextlib.contextmanager
def use(backend: str) -> Iterator[None]:
    """Leave one backend of the clip; the kernels with a driver of no calls."""
    patch = mock.patch.object
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(patch(kernels, "BACKENDS", BACKENDS[backend]))
        if backend == "CUDA kernels":
            enter(patch(paddle.device, "get_device", lambda: "gpu:0"))
            enter(patch(host, "CUDA", host.CPU))  # where the tensors lie
            enter(patch(cuda, "_LOADED", {0: _kernels_without_calls()}))
        yield


def compare(num_tensors: int, repetitions: int) -> dict[str, dict[str, float]]:
    """Time the clip by each backend, right after AdamW's step without a clip.

    What the kernels' step costs whatever the number of tensors follows.
    The tensors have one value each and lie on the CPU. Gives name -> ``ms``,
    the median, and ``of_adamw``, the median of its ratios to the step before.
    """
    parameters = [
        paddle.create_parameter([1], "float32") for _ in range(num_tensors)
    ]
    optimizer = paddle.optimizer.AdamW(parameters=parameters)
    paddle.add_n(parameters).backward()
    pairs = [(p, p.grad) for p in parameters]
    turns = {name: (name, _step_of(pairs)) for name in BACKENDS}
    turns["CUDA kernels, 1 of them"] = "CUDA kernels", _step_of(pairs[:1])
    seconds = np.zeros([2, len(turns), _UNTIMED + repetitions])
    gc.collect()
    gc.disable()
    try:
        for number in range(_UNTIMED + repetitions):
            for i, (backend, turn) in enumerate(turns.values()):
                loop = _seconds(optimizer.step)
                for parameter, gradient in pairs:  # as AdamW does before it
                    parameter.stop_gradient, gradient.is_selected_rows()
                with use(backend):
                    seconds[:, i, number] = _seconds(turn), loop
    finally:
        gc.enable()
    mine, loops = seconds[:, :, _UNTIMED:]
    found = {ADAMW: _row(loops, loops)}
    for name, *times in zip(turns, mine, loops, strict=True):
        found[name] = _row(*times)
    return found


def _row(mine: np.ndarray, loops: np.ndarray) -> dict[str, float]:
    ratio = np.median(mine / loops)
    return {"ms": 1e3 * float(np.median(mine)), "of_adamw": float(ratio)}


def _step_of(pairs: Any) -> Callable[[], Any]:
    clip: Any = ClipGradByAdaGC(t_start=1)
    return functools.partial(clip, pairs)


def _seconds(function: Callable[[], Any]) -> float:
    begun = time.thread_time()
    function()
    return time.thread_time() - begun


def to_markdown(found: dict[int, dict[str, dict[str, float]]]) -> str:
    return markdown_table(
        ["tensors", "host time of", "ms", "of AdamW's"],
        [
            (f"{count:,}", name, f"{row['ms']:.2f}", f"{row['of_adamw']:.3f}")
            for count, rows in found.items()
            for name, row in rows.items()
        ],
    )
