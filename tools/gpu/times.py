# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times of the kernels on a GPU, and tables of them."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
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
        lists = Lists(module, framework, tensors, dtype)
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
    """
    kinds = paddle_clips if isinstance(framework, Paddle) else torch_lists
    found = {}
    for name, step in kinds(framework, tensors).items():
        found[f"{name}_ms"], found[f"{name}_host_ms"] = framework.milliseconds(
            step
        )
    return found


def paddle_clips(
    framework: Torch, tensors: list[Any]
) -> dict[str, Callable[[], Any]]:
    """Return AdaGC's and Paddle's own clip of these gradients."""
    paddle = framework.lib
    zeros = paddle.nn.initializer.Constant(0.0)
    pairs = [
        (
            paddle.create_parameter(
                tensor.shape, tensor.dtype, default_initializer=zeros
            ),
            tensor,
        )
        for tensor in tensors
    ]
    adagc = importlib.import_module("paddle_adagc.clips.adagc")
    mine = adagc.ClipGradByAdaGC(t_start=0)
    theirs = paddle.nn.ClipGradByGlobalNorm(1.0)
    return {
        "clip": lambda: mine(pairs),
        "globalgc": lambda: theirs(pairs),
    }


def torch_lists(
    framework: Torch, tensors: list[Any]
) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's lists, with factors that the host knows already.

    PyTorch has no fast list for factors on the device.
    """
    torch = framework.lib

    def foreach() -> None:
        torch._foreach_norm(tensors)
        torch._foreach_mul_(tensors, [0.5] * len(tensors))

    return {"foreach": foreach}


def write_floors() -> None:
    """Print the least times that the data sheets allow, as Markdown."""
    shares = [f"{gpu[7:11]}, {share:.0%}" for gpu in PEAKS for share in SHARES]
    print_row("tensors", "values (M)", "dtype", *shares)
    print_row("---:", "---:", "---", *["---:"] * len(shares))
    for (count, values, offset), (dtype, width) in itertools.product(
        LISTS, (("float32", 4), ("bfloat16", 2))
    ):
        if not offset:
            times = [
                1e3 * (1 + 2 * share) * values * width / PEAKS[gpu]
                for gpu in PEAKS
                for share in SHARES
            ]
            print_row(f"{count:,}", f"{values / 1e6:,.0f}", dtype, *times)


COLUMNS = {
    "ms": "ms",
    "host_ms": "host ms",
    "norms_ms": "norms alone",
    "ms_at_copy_bandwidth": "at a copy's bandwidth",
    "ms_at_peak_bandwidth": "at the data sheet's",
    "clip_ms": "whole clip",
    "clip_host_ms": "its host ms",
    "globalgc_ms": "GlobalGC",
    "globalgc_host_ms": "its host ms",
    "foreach_ms": "foreach",
    "foreach_host_ms": "its host ms",
}
"""Key of a row -> heading; columns without a number are left out."""


def write_table(lines: Iterable[str]) -> None:
    """Print the times of a run as Markdown."""
    rows = [row for line in lines if "time" in (row := json.loads(line))]
    keys = [key for key in COLUMNS if any(row.get(key) for row in rows)]
    names = ("GPU", "framework", "tensors", "values (M)", "dtype", "clipped")
    print_row(*names, *(COLUMNS[key] for key in keys))
    print_row(*["---"] * len(names), *["---:"] * len(keys))
    for row in rows:
        values = f"{row['values'] / 1e6:,.0f}"
        if row["offset"]:
            values += ", odd addresses"
        print_row(
            *(row["gpu"], row["framework"], row["time"].split()[0], values),
            *(row["dtype"], f"{row['clipped']:.0%}"),
            *(row.get(key) for key in keys),
        )


def print_row(*cells: Any) -> None:
    """Print a row of a Markdown table, numbers with three digits."""
    texts = [f"{x:.3g}" if isinstance(x, float) else str(x) for x in cells]
    print("|", " | ".join(texts), "|")
