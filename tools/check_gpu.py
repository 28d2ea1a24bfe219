#!/usr/bin/env python3
# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check the CUDA kernels on a GPU and time them; prints JSON, a line each.

    python tools/check_gpu.py --quick
    python tools/check_gpu.py | tee results/gpu.jsonl
    python tools/check_gpu.py --table results/gpu.jsonl
    python tools/check_gpu.py --floors

Works on Paddle's tensors, or where Paddle is missing on PyTorch's: the kernels
and their launches need neither. Made to take under 10 minutes, with ``--quick``
30 seconds. A check that fails gives a line with its error, the others still
run, and the exit status is 1.

Checked first, and alone by ``--quick``: driver, NVRTC and stream; a step of the
rule on tensors of every dtype, some of them empty or missing, against float64;
with Paddle 20 steps of ``ClipGradByAdaGC`` by the kernels against Paddle's
operators (warm-up, Inf, NaN, None, mixed dtypes, units).

Checked then: norms against float64 and scales bit for bit, in every dtype, at
sizes around a block's and at odd addresses; the same bits in 100 runs, at other
addresses, and in the emulator of the tests; every variant of the fused rule
against NumPy; the order of what a stream gets, and that the host does not wait;
a captured graph and three replays (PyTorch); a tensor of more than 2^31 values;
memory accesses, by compute-sanitizer if it is installed.

Timed by events, medians of 20: float32 and bfloat16, 0, 10 and 100% of the
tensors clipped, against the bandwidth of a copy and that of the data sheet. In
Paddle also the whole clip and GlobalGC, in PyTorch torch._foreach_norm with
_foreach_mul_, and one by one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

DRIVER = "libcuda.so.1"
CUDA = Path(__file__).resolve().parent.parent / "paddle_adagc/kernels/cuda"


def load(name: str) -> ModuleType:
    """Load a file of the kernels without the package, which needs Paddle."""
    spec = importlib.util.spec_from_file_location(name, CUDA / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


driver, tables = load("driver"), load("tables")
sys.path.insert(0, str(CUDA.parents[2]))  # paddle_adagc, for Paddle's part

DTYPES = ("float32", "float64", "bfloat16", "float16")
LISTS = (
    *((196, 165e6, 0), (196, 165e6, 1), (219, 250e6, 0), (219, 1345e6, 0)),
    *((747, 165e6, 0), (3828, 128e6, 0), (3828, 4e6, 0)),
)
"""Number of tensors, and of values; how many values they lie off 16 bytes."""

SHARES = (0.0, 0.1, 1.0)
REPETITIONS = 20
BUSY_BYTES, BUSY_COPIES = 1 << 30, 100
"""Copied before a timed step: about 65 ms on an H100."""

PEAKS = {
    "NVIDIA H100 PCIe": 2.0e12,
    "NVIDIA H100 NVL": 3.9e12,
    "NVIDIA H100": 3.35e12,
    "NVIDIA H200": 4.8e12,
}
"""Beginning of a GPU's name -> bytes a second, from NVIDIA's data sheets."""

ORDER_VALUES, CAPTURE_VALUES = 1 << 22, 100_003
"""In each tensor of these two checks."""

LARGE_VALUES = 2**31 + 3 * tables.CHUNK + 5
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


class Torch:
    """What the checks need of a framework, by PyTorch.

    Args:
        device: ``"cuda"``; ``"cpu"`` for a test on an emulated driver.
    """

    def __init__(self, device: str = "cuda") -> None:
        self.lib: Any = importlib.import_module("torch")
        self._device = device

    def cuda_major(self) -> str:
        """Major version of CUDA that the framework was built with."""
        return str(self.lib.version.cuda).split(".")[0]

    def tensor(self, values: np.ndarray, dtype: str) -> Any:
        """Make a tensor of float64 values."""
        made = self.lib.tensor(values, device=self._device)
        return made.to(getattr(self.lib, dtype))

    def empty(self, count: int, dtype: str) -> Any:
        """Make a tensor of unknown values."""
        dtype = getattr(self.lib, dtype)
        return self.lib.empty(count, dtype=dtype, device=self._device)

    def wide(self, tensor: Any) -> np.ndarray:
        """Copy to the host as float64."""
        return tensor.double().cpu().numpy().copy()

    def scaled(self, tensor: Any, h: float) -> Any:
        """Multiply in float32 at least and round once."""
        if tensor.dtype == self.lib.float64:
            return tensor * float(np.float32(h))
        factor = self.tensor(np.array(h, np.float32), "float32")
        return (tensor.float() * factor).to(tensor.dtype)

    def stream(self) -> int:
        """Handle of the current stream."""
        if self._device == "cpu":
            return 0
        return self.lib.cuda.current_stream().cuda_stream

    def other_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Make another stream the current one."""
        return self.lib.cuda.stream(self.lib.cuda.Stream())

    def name(self) -> str:
        """Name of the GPU."""
        return self.lib.cuda.get_device_name()

    def event(self) -> Any:
        """A new event that takes the time."""
        return self.lib.cuda.Event(enable_timing=True)

    def milliseconds(self, step: Callable[[], Any]) -> tuple[float, float]:
        """Median times of a step: the device's, by events, and the host's.

        Copies keep the device busy while the host launches the step, so that
        the device does not wait for the host, as in training. A host that takes
        longer than the copies still counts.
        """
        busy = self.empty(BUSY_BYTES, "uint8")
        times, host_times = [], []
        for _ in range(REPETITIONS + 3):
            for _ in range(BUSY_COPIES):
                busy.clone()
            begin, end = self.event(), self.event()
            begin.record()
            start = time.perf_counter()
            step()
            host_times.append(1e3 * (time.perf_counter() - start))
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return statistics.median(times[3:]), statistics.median(host_times[3:])


class Paddle(Torch):
    """The same by PaddlePaddle."""

    def __init__(self, device: str = "gpu") -> None:
        self.lib = importlib.import_module("paddle")
        self.lib.set_device(device)
        self._device = device

    def cuda_major(self) -> str:
        """Major version of CUDA that the framework was built with."""
        return str(self.lib.version.cuda()).split(".")[0]

    def tensor(self, values: np.ndarray, dtype: str) -> Any:
        """Make a tensor of float64 values."""
        return self.lib.to_tensor(values).astype(dtype)

    def empty(self, count: int, dtype: str) -> Any:
        """Make a tensor of unknown values."""
        return self.lib.empty([count], dtype)

    def wide(self, tensor: Any) -> np.ndarray:
        """Copy to the host as float64."""
        return tensor.astype("float64").numpy()

    def scaled(self, tensor: Any, h: float) -> Any:
        """Multiply in float32 at least and round once."""
        if tensor.dtype == self.lib.float64:
            return tensor * float(np.float32(h))
        factor = self.lib.to_tensor(np.array([h], np.float32))
        return (tensor.astype("float32") * factor).astype(tensor.dtype)

    def stream(self) -> int:
        """Handle of the current stream."""
        if self._device == "cpu":
            return 0
        from paddle_adagc.kernels.cuda.runtime import current_stream

        return current_stream(0)

    def name(self) -> str:
        """Name of the GPU."""
        return self.lib.device.cuda.get_device_name()

    def other_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Stay with the current stream, which is not CUDA's null stream."""
        return contextlib.nullcontext()

    def event(self) -> Any:
        """A new event that takes the time."""
        return self.lib.device.Event(enable_timing=True)


class Lists:
    """A list of tensors with its launches, as the clip has them."""

    def __init__(
        self,
        module: Any,
        framework: Torch,
        tensors: list[Any],
        dtypes: str | list[str],
    ) -> None:
        sizes = np.array([int(np.prod(t.shape)) for t in tensors])
        if isinstance(dtypes, str):
            dtypes = [dtypes] * len(tensors)
        made = tables.Tables(dtypes, sizes)
        self.tensors = tensors
        self.missing: set[int] = set()
        self.memory = framework.empty(made.num_bytes, "uint8")
        self.sums = framework.empty(len(tensors), "float32")
        self.launcher = tables.Launcher(
            module, made, self.memory.data_ptr(), framework.stream()
        )

    def squared_norms(self) -> Any:
        """Tell the device the addresses, and measure."""
        self.launcher.store_addresses(
            np.array(
                [
                    0 if i in self.missing else tensor.data_ptr()
                    for i, tensor in enumerate(self.tensors)
                ],
                np.uint64,
            )
        )
        self.launcher.squared_norms(self.sums.data_ptr())
        return self.sums

    def scale(self, h: Any, discard: Any) -> None:
        """Scale in place."""
        self.launcher.scale(h.data_ptr(), discard.data_ptr())

    def step(self, h: Any, discard: Any) -> None:
        """Make both passes."""
        self.squared_norms()
        self.scale(h, discard)


def check_values(module: Any, framework: Torch, dtype: str) -> dict[str, Any]:
    """Norms against float64; scales and discarding bit for bit.

    Raises:
        AssertionError: They differ.
    """
    rng = np.random.default_rng(0)
    chunk = tables.CHUNK
    sizes = [1, 7, 31, 511, chunk - 1, chunk, chunk + 1, 3 * chunk + 5] * 3
    tensors = []
    for i, size in enumerate(sizes):
        values = rng.normal(size=size + 3)
        held = framework.tensor(values, dtype)
        tensors.append(held[i % 4 : i % 4 + size])
    tensors[2][1] = float("inf")
    before = [framework.wide(t) for t in tensors]
    h = rng.uniform(size=len(sizes)).astype(np.float32)
    h[::4] = 1.0
    lost = np.arange(len(sizes)) == 2
    expected = [
        (old.astype(np.float32) * x).astype(np.float16).astype(np.float64)
        if dtype == "float16"
        else framework.wide(framework.scaled(tensor, x))
        for tensor, old, x in zip(tensors, before, h, strict=True)
    ]
    lists = Lists(module, framework, tensors, dtype)
    sums = framework.wide(lists.squared_norms())
    lists.scale(
        framework.tensor(h.astype(np.float64), "float32"),
        framework.tensor(lost.astype(np.float64), "bool"),
    )
    exact = np.array([np.sum(b**2) for b in before])
    finite = np.isfinite(exact)
    assert np.array_equal(np.isfinite(sums), finite), (dtype, sums)
    error = np.max(np.abs(sums[finite] / exact[finite] - 1))
    assert error < 1e-6, (dtype, error)
    for i, tensor in enumerate(tensors):
        wanted = before[i] if h[i] == 1 else expected[i]
        wanted = np.zeros_like(wanted) if lost[i] else wanted
        assert np.array_equal(framework.wide(tensor), wanted), (dtype, i)
    return {"check": "values", "dtype": dtype, "norm_error": float(error)}


def launch_rule(
    module: Any,
    framework: Torch,
    rule: Any,
    squared_norm: Any,
    gamma: Any,
    deviation: Any = None,
) -> dict[str, np.ndarray]:
    """Start the fused rule; read what it gives.

    Args:
        module: The loaded kernels.
        framework: Makes the tensors.
        rule: :class:`tables.Rule`; gradients are lost if ``h_of_nonfinite`` is
            0.
        squared_norm: float32 ``[num_tensors]``, on the device.
        gamma: The same.
        deviation: The same, or None.

    Returns:
        float64 ``norm``, ``h``, ``gamma`` and ``count``; ``deviation`` and
        ``lost`` where there are any.
    """
    kinds = {"norm": "float32", "h": "float32", "gamma": "float32"}
    kinds |= {"count": "int32"}
    kinds |= {} if deviation is None else {"deviation": "float32"}
    kinds |= {} if rule.h_of_nonfinite else {"lost": "bool"}
    (count,) = gamma.shape
    got = {n: framework.empty(count, kind) for n, kind in kinds.items()}
    before = framework.tensor(np.zeros(count), "int32")
    at = {name: tensor.data_ptr() for name, tensor in got.items()}
    tables.launch_adaptive_step(
        module,
        framework.stream(),
        count,
        rule,
        squared_norm.data_ptr(),
        [
            gamma.data_ptr(),
            None if deviation is None else deviation.data_ptr(),
            *(at["norm"], at["h"], at["gamma"], at.get("deviation")),
            *(at.get("lost"), before.data_ptr(), at["count"]),
        ],
    )
    return {name: framework.wide(tensor) for name, tensor in got.items()}


def check_step(module: Any, framework: Torch) -> dict[str, Any]:
    """A step of the real rule, norms to scales, against float64.

    520 tensors of all dtypes in one list: two launches tell their addresses.
    One has Inf, one no values, and some are missing.

    Raises:
        AssertionError: They differ.
    """
    rng = np.random.default_rng(0)
    sizes = [1 + 997 * i if i < 40 else i % 7 for i in range(520)]
    dtypes = [DTYPES[i % 4] for i in range(520)]
    tensors = [
        framework.tensor(rng.normal(size=size), dtype)
        for size, dtype in zip(sizes, dtypes, strict=True)
    ]
    tensors[5][3] = float("inf")
    before = [framework.wide(tensor) for tensor in tensors]
    lists = Lists(module, framework, tensors, dtypes)
    lists.missing = {0, 7, 22, 500}
    norms = np.sqrt([np.sum(values**2) for values in before])
    norms[[*lists.missing]] = 0
    gamma = np.abs(rng.normal(1, 0.3, size=520)) * np.maximum(norms, 1)
    gamma[5] = 1.0
    held = framework.tensor(gamma, "float32")
    squares = lists.squared_norms()
    rule = tables.Rule(1.04, 0.99, 1 - 0.99, 0.0, 0.0)
    got = launch_rule(module, framework, rule, squares, held)
    with np.errstate(all="ignore"):
        h = np.minimum(1.04 * gamma / norms, 1)
        after = np.where(norms > 0, 0.99 * gamma + 0.01 * h * norms, gamma)
    h[5], after[5] = 0, gamma[5]
    assert np.allclose(got["h"], h, rtol=1e-6), "h differs"
    assert np.allclose(got["gamma"], after, rtol=1e-6), "gamma differs"
    lists.scale(
        framework.tensor(got["h"], "float32"),
        framework.tensor(got["lost"], "bool"),
    )
    tolerance = dict(zip(DTYPES, (1e-6, 1e-6, 2**-8, 2**-10), strict=True))
    for i, (tensor, values) in enumerate(zip(tensors, before, strict=True)):
        factor = 1.0 if i in lists.missing else h[i]
        wanted = np.zeros_like(values) if i == 5 else factor * values
        found = framework.wide(tensor)
        close = np.allclose(found, wanted, rtol=tolerance[dtypes[i]], atol=1e-6)
        assert close, f"gradient {i} ({dtypes[i]}) differs"
    return {"check": "step", "clipped": int((h < 1).sum())}


def check_clip(framework: Torch) -> dict[str, Any]:
    """20 steps of ``ClipGradByAdaGC``, by the kernels and by the operators.

    Raises:
        AssertionError: They differ, or the kernels were not used.
    """
    with backend("DeviceTensors"):
        mine, launched = clip_steps(framework)
    with backend("OperatorTensors"):
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
    return {"check": "ClipGradByAdaGC", "steps": 20}


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Leave one backend of the clip, and the operators for the rest."""
    kernels: Any = importlib.import_module("paddle_adagc.kernels")
    kept = kernels.BACKENDS
    kernels.BACKENDS = tuple(
        kind for kind in kept if kind.__name__ in (name, "OperatorTensors")
    )
    try:
        yield
    finally:
        kernels.BACKENDS = kept


def clip_steps(framework: Torch) -> tuple[list[dict[str, np.ndarray]], int]:
    """Make 20 steps; give each one's numbers, and in how many kernels ran."""
    paddle = framework.lib
    adagc = importlib.import_module("paddle_adagc.clips.adagc")
    gradients = importlib.import_module("paddle_adagc.clips.gradients")
    shapes = [[40, 24], [tables.CHUNK + 5], [7], [3, 5, 8], [11]]
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
        launched += gradients.GradientList(held).is_on_gpu
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
    """All variants of the fused rule against NumPy, bit for bit.

    Raises:
        AssertionError: They differ.
    """
    rng = np.random.default_rng(0)
    squares, old, spread = rng.lognormal(size=(3, 3828)).astype(np.float32)
    squares[:3], old[3:5] = (0, np.inf, np.nan), np.inf
    squares[4:8], old[6:9] = 1e-40, 1e-41  # subnormal
    variants = [*itertools.product((1, 513, 3828), (0.99, 0), (0, 3), (0, 1))]
    for count, beta, lambda_dev, h_of_nonfinite in variants:
        rule = tables.Rule(1.04, beta, 1 - beta, lambda_dev, h_of_nonfinite)
        vectors = [squares[:count], old[:count]]
        vectors += [spread[:count]] if lambda_dev else []
        wanted = expected_of_rule(rule, *vectors)
        held = [framework.tensor(v.astype(float), "float32") for v in vectors]
        got = launch_rule(module, framework, rule, *held)
        assert set(got) == set(wanted)
        for name, values in wanted.items():
            same = np.array_equal(got[name], values, equal_nan=True)
            assert same, (
                f"{name} differs: {count} tensors, beta {beta}, lambda_dev "
                f"{lambda_dev}, h of Inf {h_of_nonfinite}"
            )
    return {"check": "rule", "variants": len(variants)}


def expected_of_rule(
    rule: Any,
    squares: np.ndarray,
    old: np.ndarray,
    deviation: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Return what :func:`launch_rule` should; all is float32."""
    rel, beta, rest, dev, h_of_nonfinite = (
        np.float32(getattr(rule, name)) for name, _ in rule._fields_
    )
    with np.errstate(all="ignore"):
        norm = np.sqrt(squares.astype(np.float64)).astype(np.float32)
        lost = ~np.isfinite(norm)
        threshold = rel * old
        if deviation is not None:
            threshold = np.fmax(threshold, old + dev * deviation)
        one, zero = np.float32(1), np.float32(0)
        h = np.where(lost, zero, np.fmin(threshold / norm, one))
        clipped = h * norm
        change = clipped - old
        is_observed = np.isfinite(clipped) & (clipped > 0)
        average = np.where(np.isfinite(old), old + rest * change, clipped)
        found = {
            "norm": norm,
            "h": np.where(lost, h_of_nonfinite, h),
            "gamma": np.where(is_observed, average, old),
            "count": lost,
        }
        if not h_of_nonfinite:
            found["lost"] = lost
        if deviation is not None:
            spread = beta * deviation + rest * np.abs(change)
            is_known = is_observed & np.isfinite(old)
            found["deviation"] = np.where(is_known, spread, deviation)
    return found


def check_repeats(module: Any, framework: Torch, dtype: str) -> dict[str, Any]:
    """Sums have the same bits in every run, at every address, on every GPU.

    Raises:
        AssertionError: They differ.
    """
    sizes = [1, 7, tables.CHUNK - 1, 3 * tables.CHUNK + 5]
    seen, kept = set(), []
    for offset in (0, 0, 1):
        tensors = []
        for size in sizes:
            numbers = np.arange(-offset, size)
            values = numbers * 2654435761 % 65536 / 8192 - 4
            tensors.append(framework.tensor(values, dtype)[offset:])
        is_aligned = tensors[-1].data_ptr() % 16 == 0
        assert is_aligned == (offset == 0), "the view lies elsewhere"
        lists = Lists(module, framework, tensors, dtype)
        kept.append(lists)  # so that the next lies elsewhere
        for _ in range(REPEATS):
            sums = framework.wide(lists.squared_norms())
            seen.add(sums.astype(np.float32).tobytes())
    assert len(seen) == 1, f"{dtype}: {len(seen)} different results"
    digest = hashlib.sha256(seen.pop()).hexdigest()[:16]
    assert digest == SUMS[dtype], f"{dtype}: {digest}, emulated {SUMS[dtype]}"
    return {"check": "same bits", "dtype": dtype, "runs": 3 * REPEATS}


def check_order(module: Any, framework: Torch) -> dict[str, Any]:
    """Both passes run after what their stream got before, the host goes on.

    Raises:
        AssertionError: They did not see it, came too late, or the host waited.
    """
    busy = framework.empty(BUSY_BYTES, "uint8")
    zeros = np.zeros(ORDER_VALUES)
    tensors = [framework.tensor(zeros, "float32") for _ in range(8)]
    h = framework.tensor(np.full(8, 0.5), "float32")
    discard = framework.tensor(np.zeros(8), "bool")
    framework.wide(discard)  # waits for all that was begun
    with framework.other_stream():
        lists = Lists(module, framework, tensors, "float32")
        lists.step(h, discard)  # loads the kernels
        for _ in range(BUSY_COPIES):
            busy.clone()
        for tensor in tensors:
            tensor.fill_(1.0)
        lists.step(h, discard)
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
    assert not has_waited, "the host waited for the device"
    return {"check": "order"}


def check_large(module: Any, framework: Torch) -> dict[str, Any]:
    """A tensor of more than 2^31 values.

    Raises:
        AssertionError: Not all of them were added and scaled.
    """
    row = {"check": "large", "values": LARGE_VALUES}
    free, needed = free_bytes(), 2 * LARGE_VALUES + (1 << 29)
    if free < needed:
        text = f"{free / 1e9:.1f} GB are free, {needed / 1e9:.1f} are needed"
        return row | {"skipped": text}
    tensor = framework.empty(LARGE_VALUES, "bfloat16")
    tensor.fill_(1.0)
    lists = Lists(module, framework, [tensor], "bfloat16")
    h = framework.tensor(np.full(1, 0.5), "float32")
    for wanted in (1.0, 0.5):
        (found,) = framework.wide(lists.squared_norms())
        error = abs(found / (wanted**2 * LARGE_VALUES) - 1)
        assert error < 1e-6, f"norm of {wanted} differs: {found}"
        last = framework.wide(tensor[-9:])
        assert np.all(last == wanted), f"the last values are {last}"
        lists.scale(h, framework.tensor(np.zeros(1), "bool"))
    return row


def free_bytes() -> int:
    """Free memory of the current device."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.Driver(ctypes.CDLL(DRIVER)).call(
        "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)
    )
    return free.value


def check_capture(module: Any, framework: Torch) -> dict[str, Any]:
    """Capture both passes in a graph; replay it three times."""
    torch = framework.lib
    one = framework.tensor(np.ones(CAPTURE_VALUES), "float32")
    tensors = [one.clone() for _ in range(500)]
    h = framework.tensor(np.full(500, 0.5), "float32")
    discard = framework.tensor(np.zeros(500), "bool")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        lists = Lists(module, framework, tensors, "float32")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        lists.step(h, discard)
    for replay in range(3):
        graph.replay()
        torch.cuda.synchronize()
        sums = framework.wide(lists.sums)
        assert np.allclose(sums, CAPTURE_VALUES / 4**replay, rtol=1e-6), (
            replay,
            sums,
        )
    return {"check": "capture and 3 replays"}


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
    """Return PyTorch's lists, and a loop over the tensors.

    The lists get their factors as numbers, as if the host knew them already:
    PyTorch has no fast list for factors on the device.
    """
    torch = framework.lib
    factors = framework.tensor(np.full(len(tensors), 0.5), "float32").unbind()

    def foreach() -> None:
        torch._foreach_norm(tensors)
        torch._foreach_mul_(tensors, [0.5] * len(tensors))

    def one_by_one() -> None:
        for tensor, factor in zip(tensors, factors, strict=True):
            torch.linalg.vector_norm(tensor)
            tensor.mul_(factor)

    return {"foreach": foreach, "one_by_one": one_by_one}


def write_floors() -> None:
    """Print the least times that the data sheets allow, as Markdown."""
    gpus = ("NVIDIA H100", "NVIDIA H200")
    shares = [f"{gpu[7:]}, {share:.0%}" for gpu in gpus for share in SHARES]
    print_row("tensors", "values (M)", "dtype", *shares)
    print_row("---:", "---:", "---", *["---:"] * len(shares))
    for (count, values, offset), (dtype, width) in itertools.product(
        LISTS, (("float32", 4), ("bfloat16", 2))
    ):
        if not offset:
            times = [
                1e3 * (1 + 2 * share) * values * width / PEAKS[gpu]
                for gpu in gpus
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
    "one_by_one_ms": "one by one",
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


def pick_framework(name: str | None) -> Torch:
    """Paddle if it is installed for GPUs, else PyTorch; or the named one.

    Raises:
        RuntimeError: Neither is, or there is no GPU.
    """
    if name != "torch" and importlib.util.find_spec("paddle"):
        paddle = importlib.import_module("paddle")
        if paddle.device.is_compiled_with_cuda():
            return Paddle()
    if name != "paddle" and importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            return Torch()
    raise RuntimeError(
        "no GPU to check: this needs paddlepaddle-gpu, or a PyTorch whose "
        "torch.cuda.is_available() is true"
    )


def load_kernels(cuda_major: str) -> tuple[Any, dict[str, Any]]:
    """Compile the kernels for the current GPU and load them.

    Args:
        cuda_major: The NVRTC to prefer: a newer one than the driver's CUDA may
            make code that the driver refuses.
    """
    cuda = driver.Driver(ctypes.CDLL(DRIVER))
    cuda.use_context(0)
    nvrtc = driver.load_nvrtc(cuda_major)
    compiler = driver.Compiler(nvrtc)
    target = compiler.target(cuda.capability(0))
    source = (CUDA / "multi_tensor.cu").read_text()
    options = (*driver.OPTIONS, *tables.DEFINES)
    start = time.perf_counter()
    image, _ = compiler.compile(source, target, options)
    compiled = time.perf_counter()
    module = cuda.load(image)
    facts = {
        "driver": cuda.version,
        "target": target,
        "nvrtc": ".".join(map(str, compiler.version)),
        "nvrtc_file": nvrtc._name,
        "compile_ms": 1e3 * (compiled - start),
        "load_ms": 1e3 * (time.perf_counter() - compiled),
    }
    return module, facts


def check_memory() -> dict[str, Any]:
    """Repeat the checks of values under compute-sanitizer.

    Raises:
        RuntimeError: It found an error, or a check failed under it.
    """
    tool = shutil.which("compute-sanitizer", path=TOOL_PATH)
    if tool is None:
        return {"check": "compute-sanitizer", "skipped": "not installed"}
    command = [tool, "--error-exitcode", "1", "--report-api-errors", "no"]
    done = subprocess.run(
        [*command, sys.executable, __file__, "--values"],
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
    return {"check": "compute-sanitizer"}


def attempt(name: str, check: Callable[..., Any], *args: Any) -> Iterable[Any]:
    """Rows of a check; if it fails, one that says why."""
    try:
        found = check(*args)
        yield from [found] if isinstance(found, dict) else found
    except Exception as error:
        yield {"check": name, "error": f"{type(error).__name__}: {error}"}


def all_rows(
    module: Any, framework: Torch, *, only: str
) -> Iterator[dict[str, Any]]:
    """Run every check and timing, one after the other.

    Args:
        module: The loaded kernels.
        framework: Makes the tensors.
        only: ``"quick"``, ``"values"`` or, for all, ``""``.
    """
    if only != "values":
        yield from attempt("step", check_step, module, framework)
        if isinstance(framework, Paddle):
            yield from attempt("ClipGradByAdaGC", check_clip, framework)
    if only == "quick":
        return
    for dtype in DTYPES:
        yield from attempt("values", check_values, module, framework, dtype)
    yield from attempt("rule", check_rule, module, framework)
    if only == "values":
        return
    for dtype in DTYPES:
        yield from attempt("repeats", check_repeats, module, framework, dtype)
    yield from attempt("order", check_order, module, framework)
    if not isinstance(framework, Paddle):
        yield from attempt("capture", check_capture, module, framework)
    yield from attempt("large", check_large, module, framework)
    yield from attempt("times", time_lists, module, framework)
    yield from attempt("compute-sanitizer", check_memory)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = argparse.ArgumentParser(
        prog="python tools/check_gpu.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    part = parser.add_mutually_exclusive_group()
    for only, text in {
        "quick": "only the checks that come first, 30 seconds",
        "values": "only the checks of values and of the rule",
    }.items():
        part.add_argument(
            f"--{only}",
            dest="only",
            action="store_const",
            const=only,
            default="",
            help=text,
        )
    part.add_argument(
        "--table",
        type=argparse.FileType(),
        metavar="FILE",
        help="no check: print the times of a run as Markdown",
    )
    part.add_argument(
        "--floors",
        action="store_true",
        help="no check: print the least times by data sheet, in milliseconds",
    )
    parser.add_argument(
        "--framework",
        choices=("paddle", "torch"),
        help="whose tensors; Paddle's if it is installed for GPUs",
    )
    options = parser.parse_args(arguments)
    if options.floors or options.table:
        write_floors() if options.floors else write_table(options.table)
        return 0
    try:
        framework = pick_framework(options.framework)
        framework.empty(1, "uint8")  # makes the context
        module, facts = load_kernels(framework.cuda_major())
    except (OSError, RuntimeError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    facts |= {
        "gpu": framework.name(),
        "framework": f"{framework.lib.__name__} {framework.lib.__version__}",
        "stream": framework.stream(),
    }
    has_failed = False
    for row in all_rows(module, framework, only=options.only):
        print(json.dumps(facts | row), flush=True)
        has_failed |= "error" in row
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
