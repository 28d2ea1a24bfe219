#!/usr/bin/env python3
# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check the CUDA kernels on a GPU and time them; prints JSON, a line each.

    python tools/check_gpu.py --quick
    python tools/check_gpu.py | tee gpu.jsonl
    python tools/check_gpu.py --tables results/gpu.jsonl

Works on Paddle's tensors, or where Paddle is missing on PyTorch's: the kernels
and their launches need neither. Takes under 10 minutes, with ``--quick`` 30
seconds. A check that fails gives a line with its error, the others still run,
and the exit status is 1.

``--quick`` checks a step of the rule on 520 tensors of every dtype, all
variants of the fused rule against NumPy, and with Paddle 20 steps of
``ClipGradByAdaGC`` by the kernels against Paddle's operators. Without it also:
the same bits in 100 runs, at other addresses and in the emulator of the tests;
the order in a stream; a captured graph (PyTorch); a tensor of more than 2^31
values; memory accesses, by compute-sanitizer if it is installed; and times by
events, against the bandwidth of a copy and that of the data sheet.
``--tables`` runs nothing and prints the tables of docs/gpu.md.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
import importlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import gpu
import numpy as np
from gpu import Lists, Paddle, Torch, launch

DTYPES = ("float32", "float64", "bfloat16", "float16")

ORDER_VALUES, CAPTURE_VALUES = 1 << 22, 100_003
"""In each tensor of these two checks."""

LARGE_VALUES = 2**31 + 3 * launch.CHUNK + 5
REPEATS = 100
SUMS = {
    "float32": "8adc513d4a589eea",
    "float64": "13471e4f03723b15",
    "bfloat16": "141ba1e3bcbd01ad",
    "float16": "a3df1372a6758709",
}
"""Digest of the sums of :func:`check_repeats`, as the emulator makes them."""

SANITIZER_SECONDS = 150
TOOL_PATH = f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin"


def check_step(module: Any, framework: Torch) -> dict[str, Any]:
    """A step of the real rule, norms to scales, on tensors of all dtypes.

    Two launches tell the addresses of the 520. One has Inf, some have no values
    and some are missing.
    """
    rng = np.random.default_rng(0)
    chunk = launch.CHUNK
    edges = [1, 7, 31, 511, chunk - 1, chunk, chunk + 1, 3 * chunk + 5]
    sizes = [edges[i // 4 % 8] if i < 96 else i % 7 for i in range(520)]
    dtypes = [DTYPES[i % 4] for i in range(520)]
    tensors = []
    for i, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True)):
        held = framework.tensor(rng.normal(size=size + 3), dtype)
        tensors.append(held[i // 32 : i // 32 + size] if i < 96 else held[3:])
    lost, missing = 17, {0, 7, 22, 500}
    tensors[lost][3] = float("inf")
    before = [framework.wide(tensor) for tensor in tensors]
    lists = Lists(module, framework, tensors)
    lists.tensors = [
        None if i in missing else tensor for i, tensor in enumerate(tensors)
    ]
    squares = framework.wide(lists.squared_norms())
    exact = np.array([np.sum(values**2) for values in before])
    exact[[*missing]] = 0
    close = np.allclose(squares, exact, rtol=1e-6, atol=0)
    assert close, "norms differ"
    gamma = np.abs(rng.normal(1, 0.3, size=520)) * np.sqrt(exact + 1)
    gamma[lost] = 1.0
    rule = launch.Rule(1.04, 1 - 0.99, 0.0)
    held = framework.tensor(gamma, "float32")
    got = gpu.launch_rule(module, framework, rule, lists.sums, held)
    vectors = squares.astype(np.float32), gamma.astype(np.float32)
    for name, values in gpu.expected_of_rule(rule, *vectors).items():
        assert np.array_equal(got[name], values), f"{name} differs"
    lists.launcher.scale(
        framework.tensor(got["h"], "float32"),
        framework.tensor(got["discard"], "bool"),
    )
    for i, (tensor, values) in enumerate(zip(tensors, before, strict=True)):
        h = 1.0 if i in missing else got["h"][i]
        wanted = np.zeros_like(values)
        if i != lost:
            wanted = framework.scaled(values, h, dtypes[i])
        same = np.array_equal(framework.wide(tensor), wanted)
        assert same, f"gradient {i} ({dtypes[i]}) differs"
    return {"clipped": int((got["h"] < 1).sum())}


def check_clip(module: Any, framework: Torch) -> dict[str, Any]:
    """20 steps of ``ClipGradByAdaGC``, by the kernels and by the operators."""
    kernels: Any = importlib.import_module("paddle_adagc.kernels")
    *_, device, operators = kernels.BACKENDS
    with mock.patch.object(kernels, "BACKENDS", (device, operators)):
        mine, launched = clip_steps(framework)
    with mock.patch.object(kernels, "BACKENDS", (operators,)):
        others, _ = clip_steps(framework)
    assert launched == 20, f"the kernels ran in {launched} of 20 steps"
    for step, (one, other) in enumerate(zip(mine, others, strict=True)):
        for name, values in one.items():
            close = np.allclose(
                values, other[name], rtol=2**-7, atol=1e-6, equal_nan=True
            )
            assert close, f"step {step}: {name} differs"
        same = np.allclose(one["gamma"], other["gamma"], rtol=1e-5)
        assert same, f"step {step}: gamma differs"
    return {"steps": 20}


def clip_steps(framework: Torch) -> tuple[list[dict[str, np.ndarray]], int]:
    """Make 20 steps; give each one's numbers, and in how many kernels ran."""
    paddle = framework.lib
    adagc = importlib.import_module("paddle_adagc.clips.adagc")
    gradients = importlib.import_module("paddle_adagc.clips.gradients")
    shapes = [[40, 24], [launch.CHUNK + 5], [7], [3, 5, 8], [11]]
    dtypes = ["float32", "float32", "bfloat16", "float32", "float16"]
    zeros = paddle.nn.initializer.Constant(0.0)
    model = paddle.nn.ParameterList(
        [
            paddle.create_parameter(shape, dtype, default_initializer=zeros)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
    )
    clip = adagc.ClipGradByAdaGC(t_start=6)
    parts = {"^0$": {"parts": {"q": 2, "k": 1}}, "^3$": "experts"}
    clip.bind(model, units=parts)
    rows, launched = [], 0
    for step in range(20):
        rng = np.random.default_rng(step)
        values = [rng.normal(size=shape) for shape in shapes]
        values[step % 5] *= 50 if step % 3 == 2 else 1
        if step in (4, 11):
            values[1][-1] = np.inf if step == 4 else np.nan
        pairs = [
            (parameter, None)
            if (step * 7 + i) % 6 == 5
            else (parameter, framework.tensor(values[i], dtypes[i]))
            for i, parameter in enumerate(model)
        ]
        held = [gradient for _, gradient in pairs]
        measured = gradients.GradientList(held)
        measured.squared_norms()
        launched += measured.is_on_gpu
        clip(pairs)
        row = {
            f"gradient {i}": framework.wide(gradient)
            for i, gradient in enumerate(held)
            if gradient is not None
        }
        gamma = clip.state_dict()["gamma"].values()
        row["gamma"] = np.array([float(number) for number in gamma])
        rows.append(row)
    return rows, launched


def check_rule(module: Any, framework: Torch) -> dict[str, Any]:
    """All variants of the fused rule against NumPy, bit for bit."""
    rng = np.random.default_rng(0)
    squares, old = rng.lognormal(size=(2, 3828)).astype(np.float32)
    squares[:3], old[3:5] = (0, np.inf, np.nan), np.inf
    squares[4:8], old[6:9] = 1e-40, 1e-41  # subnormal
    variants = [*itertools.product((1, 513, 3828), (0.99, 0), (0, 1))]
    for count, beta, h_of_nonfinite in variants:
        rule = launch.Rule(1.04, 1 - beta, h_of_nonfinite)
        vectors = [squares[:count], old[:count]]
        wanted = gpu.expected_of_rule(rule, *vectors)
        held = [framework.tensor(v.astype(float), "float32") for v in vectors]
        got = gpu.launch_rule(module, framework, rule, *held)
        assert set(got) == set(wanted)
        for name, values in wanted.items():
            same = np.array_equal(got[name], values, equal_nan=True)
            assert same, (
                f"{name} differs: {count} tensors, beta {beta}, "
                f"h of Inf {h_of_nonfinite}"
            )
    return {"variants": len(variants)}


def check_repeats(module: Any, framework: Torch, dtype: str) -> dict[str, Any]:
    """Sums have the same bits in every run, at every address, on every GPU."""
    sizes = [1, 7, launch.CHUNK - 1, 3 * launch.CHUNK + 5]
    seen, kept = set(), []
    for offset in (0, 0, 1):
        tensors = []
        for size in sizes:
            numbers = np.arange(-offset, size)
            values = numbers * 2654435761 % 65536 / 8192 - 4
            tensors.append(framework.tensor(values, dtype)[offset:])
        is_aligned = tensors[-1].data_ptr() % 16 == 0
        assert is_aligned == (offset == 0), "the view lies elsewhere"
        lists = Lists(module, framework, tensors)
        kept.append(lists)  # so that the next lies elsewhere
        for _ in range(REPEATS):
            sums = framework.wide(lists.squared_norms())
            seen.add(sums.astype(np.float32).tobytes())
    assert len(seen) == 1, f"{dtype}: {len(seen)} different results"
    digest = hashlib.sha256(seen.pop()).hexdigest()[:16]
    assert digest == SUMS[dtype], f"{dtype}: {digest}, emulated {SUMS[dtype]}"
    return {"dtype": dtype, "runs": 3 * REPEATS}


def check_order(module: Any, framework: Torch) -> None:
    """Both passes run after what their stream got before, the host goes on.

    A host that waits does so in each of three tries; one that the machine
    delays, by more than the copies take, does not.
    """
    waits = [_waits_in_order(module, framework) for _ in range(3)]
    assert not all(waits), "the host waited for the device"


def _waits_in_order(module: Any, framework: Torch) -> bool:
    """Check the order; return whether the device was done before the host."""
    busy = framework.empty(gpu.BUSY_BYTES, "uint8")
    zeros = np.zeros(ORDER_VALUES)
    tensors = [framework.tensor(zeros, "float32") for _ in range(8)]
    h = framework.tensor(np.full(8, 0.5), "float32")
    framework.wide(h)  # waits for all that was begun
    with framework.other_stream():
        lists = Lists(module, framework, tensors)
        lists.step(h)  # loads the kernels
        for _ in range(gpu.BUSY_COPIES):
            busy.clone()
        for tensor in tensors:
            tensor.fill_(1.0)
        lists.step(h)
        done = framework.event()
        done.record()
        has_waited = done.query()
        scaled = [tensor.clone() for tensor in tensors]
        for tensor in tensors:
            tensor.fill_(9.0)
        sums = framework.wide(lists.sums)
        found = np.stack([framework.wide(tensor) for tensor in scaled])
    assert np.all(sums == ORDER_VALUES), f"norms in no order: {sums}"
    assert np.all(found == 0.5), "scales in no order"
    return has_waited


def check_large(module: Any, framework: Torch) -> dict[str, Any]:
    """A tensor of more than 2^31 values."""
    row: dict[str, Any] = {"values": LARGE_VALUES}
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    module.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    needed = 2 * LARGE_VALUES + (1 << 29)
    if free.value < needed:
        found = f"{free.value / 1e9:.1f} GB are free"
        return row | {"skipped": f"{found}, {needed / 1e9:.1f} are needed"}
    tensor = framework.empty(LARGE_VALUES, "bfloat16")
    tensor.fill_(1.0)
    lists = Lists(module, framework, [tensor])
    h = framework.tensor(np.full(1, 0.5), "float32")
    for wanted in (1.0, 0.5):
        last = framework.wide(tensor[-9:])
        assert np.all(last == wanted), f"the last values are {last}"
        lists.step(h)
        (found,) = framework.wide(lists.sums)
        error = abs(found / (wanted**2 * LARGE_VALUES) - 1)
        assert error < 1e-6, f"norm of {wanted} differs: {found}"
    return row


def check_capture(module: Any, framework: Torch) -> None:
    """Capture both passes in a graph; replay it three times."""
    cuda = framework.lib.cuda
    one = framework.tensor(np.ones(CAPTURE_VALUES), "float32")
    tensors = [one.clone() for _ in range(500)]
    h = framework.tensor(np.full(500, 0.5), "float32")
    stream, graph = cuda.Stream(), cuda.CUDAGraph()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        lists = Lists(module, framework, tensors)
    cuda.synchronize()
    with cuda.graph(graph, stream=stream):
        lists.step(h)
    for replay in range(3):
        graph.replay()
        cuda.synchronize()
        sums = framework.wide(lists.sums)
        wanted = CAPTURE_VALUES / 4**replay
        assert np.allclose(sums, wanted, rtol=1e-6), (replay, sums)


def check_memory(module: Any, framework: Torch) -> dict[str, Any]:
    """Repeat the first checks under compute-sanitizer."""
    tool = shutil.which("compute-sanitizer", path=TOOL_PATH)
    if tool is None:
        return {"skipped": "not installed"}
    command = [tool, "--error-exitcode", "1", "--report-api-errors", "no"]
    chosen = "--framework", type(framework).__name__.lower()
    done = subprocess.run(
        [*command, sys.executable, __file__, "--quick", *chosen],
        # Else PyTorch cuts tensors out of large blocks, and the tool sees only
        # what lies outside of these.
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
        timeout=SANITIZER_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-2000:])
    return {}


def all_rows(
    module: Any, framework: Torch, is_quick: bool
) -> Iterator[dict[str, Any]]:
    """Run checks and timings; a check that fails gives a row that says why."""
    has_paddle = isinstance(framework, Paddle)
    checks: list[tuple[str, Callable[..., Any]]]
    checks = [("step", check_step), ("rule", check_rule)]
    if has_paddle:
        checks += [("ClipGradByAdaGC", check_clip)]
    if not is_quick:
        for dtype in DTYPES:
            repeats = functools.partial(check_repeats, dtype=dtype)
            checks += [("same bits", repeats)]
        checks += [("order", check_order)]
        if not has_paddle:
            checks += [("capture and 3 replays", check_capture)]
        checks += [("large", check_large), ("times", gpu.time_lists)]
        checks += [("compute-sanitizer", check_memory)]
    for name, check in checks:
        try:
            found = check(module, framework)
            is_row = not isinstance(found, Iterator)
            yield from [{"check": name} | (found or {})] if is_row else found
        except Exception as error:
            yield {"check": name, "error": f"{type(error).__name__}: {error}"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = argparse.ArgumentParser(
        prog="python tools/check_gpu.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    quick = "only the checks that come first, 30 seconds"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--framework",
        choices=("paddle", "torch"),
        help="whose tensors; Paddle's if it is installed for GPUs",
    )
    tables = "print the tables of a file's rows"
    parser.add_argument("--tables", metavar="FILE", help=tables)
    options = parser.parse_args(arguments)
    try:
        if options.tables is not None:
            from adagc_lab.benchmark import gpu_tables

            print(gpu_tables.tables(Path(options.tables)), end="")
            return 0
        framework = gpu.pick_framework(options.framework)
        framework.empty(1, "uint8")  # makes the context
        module, facts = gpu.load_kernels(framework)
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    facts |= {
        "gpu": framework.name(),
        "framework": f"{framework.lib.__name__} {framework.lib.__version__}",
        "stream": framework.stream(),
    }
    has_failed = False
    for row in all_rows(module, framework, options.quick):
        print(json.dumps(gpu.rounded(facts | row)), flush=True)
        has_failed |= "error" in row
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
