# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times of the kernels on a GPU."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpu.parts import Lists, Paddle, Torch

LISTS = (
    *((196, 165e6, 0), (196, 165e6, 1), (219, 250e6, 0), (219, 1345e6, 0)),
    *((747, 165e6, 0), (3828, 128e6, 0), (3828, 4e6, 0)),
)
"""Number of tensors, and of values; how many values they lie off 16 bytes."""

SHARES = (0.0, 0.1, 1.0)
PEAKS = {"NVIDIA H100 80GB HBM3": 3.35e12, "NVIDIA H200": 4.8e12}
"""Beginning of a GPU's name -> bytes a second, as published for the H100 of SXM
modules and the H200; other GPUs have only a copy's bandwidth as the floor."""


def time_lists(module: Any, framework: Torch) -> Iterator[dict[str, Any]]:
    """Time both passes, and what a user could do without the kernels."""
    name = framework.name()
    peak = next((PEAKS[key] for key in PEAKS if name.startswith(key)), None)
    for (dtype, width), (count, total, offset) in itertools.product(
        (("float32", 4), ("bfloat16", 2)), LISTS
    ):
        size = int(total) // count
        zeros = np.zeros(size + offset)
        tensors = [
            framework.tensor(zeros, dtype)[offset:] for _ in range(count)
        ]
        lists = Lists(module, framework, tensors, [dtype] * count)
        discard = framework.tensor(np.zeros(count), "bool")
        source = framework.empty(count * size * width, "uint8")
        copy_ms, _ = framework.milliseconds(source.clone)
        del source
        norms_ms, _ = framework.milliseconds(lists.squared_norms)
        baselines = others(framework, tensors)
        for share in SHARES:
            scales = np.ones(count)
            scales[: round(share * count)] = 0.5
            h = framework.tensor(scales, "float32")
            mine, host = framework.milliseconds(
                functools.partial(lists.step, h, discard)
            )
            passes = 1 + 2 * round(share * count) / count
            moved = passes * count * size * width
            floor = copy_ms * passes / 2  # a copy reads and writes
            yield {
                "time": f"{count} tensors",
                "values": count * size,
                "dtype": dtype,
                "offset": offset,
                "clipped": share,
                "ms": mine,
                "host_ms": host,
                "norms_ms": norms_ms,
                "ms_at_copy_bandwidth": floor,
                "of_copy_bandwidth": mine / floor,
                "ms_at_peak_bandwidth": peak and 1e3 * moved / peak,
                **baselines,
            }


def others(framework: Torch, tensors: list[Any]) -> dict[str, float]:
    """Time what a user could do, and with Paddle the whole clip; in ms.

    All scale everything but the whole clip, whose gradients are zero here.
    PyTorch has no fast list for factors on the device.
    """
    lib, steps = framework.lib, dict[str, Callable[[], Any]]()
    if isinstance(framework, Paddle):
        adagc = importlib.import_module("paddle_adagc.clips.adagc")
        zeros = lib.nn.initializer.Constant(0.0)
        make = functools.partial(
            lib.create_parameter, default_initializer=zeros
        )
        pairs = [(make(t.shape, t.dtype), t) for t in tensors]
        mine = adagc.ClipGradByAdaGC(t_start=0)
        theirs = lib.nn.ClipGradByGlobalNorm(1.0)
        steps["clip"] = functools.partial(mine, pairs)
        steps["globalgc"] = functools.partial(theirs, pairs)
    else:
        factors = [0.5] * len(tensors)
        steps["foreach"] = lambda: (
            lib._foreach_norm(tensors),
            lib._foreach_mul_(tensors, factors),
        )
    found: dict[str, float] = {}
    for name, step in steps.items():
        ms, host_ms = framework.milliseconds(step)
        found |= {f"{name}_ms": ms, f"{name}_host_ms": host_ms}
    return found
