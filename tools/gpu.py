# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kernels on a GPU and their times, with tensors of Paddle or PyTorch."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

DRIVER = "libcuda.so.1"
CUDA = Path(__file__).resolve().parents[1] / "paddle_adagc/kernels/cuda"

# Without the package, which needs Paddle; then with it, for Paddle's part.
sys.path[:0] = [str(CUDA), str(CUDA.parents[2])]
launch: Any = importlib.import_module("launch")

REPETITIONS = 20
BUSY_BYTES, BUSY_COPIES = 1 << 30, 100
"""Copied before a timed step: about 65 ms on an H100."""

LISTS = (
    *((196, 165e6, 0), (196, 165e6, 1), (219, 250e6, 0), (219, 1345e6, 0)),
    *((747, 165e6, 0), (3828, 128e6, 0), (3828, 4e6, 0)),
)
"""Number of tensors, and of values; how many values they lie off 16 bytes."""

SHARES = (0.0, 0.1, 1.0)
PEAKS = {"NVIDIA H100 80GB HBM3": 3.35e12, "NVIDIA H200": 4.8e12}
"""Beginning of a GPU's name -> bytes a second, as published for the H100 of SXM
modules and the H200; other GPUs have only a copy's bandwidth as the floor."""


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

    def scaled(self, values: np.ndarray, h: float, dtype: str) -> np.ndarray:
        """Multiply in float32 at least and round once."""
        factor = np.float32(h)
        product = values * factor
        if dtype != "float64":
            product = values.astype(np.float32) * factor
        if dtype == "float16":
            product = product.astype(np.float16)
        return self.wide(self.tensor(product.astype(np.float64), dtype))

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
        return str(self.lib.version.cuda()).split(".")[0]

    def tensor(self, values: np.ndarray, dtype: str) -> Any:
        if dtype == "float16":  # Paddle 3.1 rounds twice
            values = values.astype(np.float16)
        return self.lib.to_tensor(values).astype(dtype)

    def empty(self, count: int, dtype: str) -> Any:
        return self.lib.empty([count], dtype)

    def wide(self, tensor: Any) -> np.ndarray:
        return tensor.astype("float64").numpy()

    def stream(self) -> int:
        if self._device == "cpu":
            return 0
        cuda = importlib.import_module("paddle_adagc.kernels.cuda")
        return cuda.current_stream(0)

    def name(self) -> str:
        return self.lib.device.cuda.get_device_name()

    def other_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Stay with the current stream, which is not CUDA's null stream."""
        return contextlib.nullcontext()

    def event(self) -> Any:
        return self.lib.device.Event(enable_timing=True)


class Lists:
    """A list of tensors with its launches, as the clip has them.

    ``tensors`` may become None, for a gradient that is missing.
    """

    def __init__(
        self, module: Any, framework: Torch, tensors: list[Any]
    ) -> None:
        self.tensors = tensors
        self.sums = framework.empty(len(tensors), "float32")
        self.kept = framework.tensor(np.zeros(len(tensors)), "bool")
        dtypes = [str(t.dtype).rpartition(".")[2] for t in tensors]
        sizes = np.array([int(np.prod(t.shape)) for t in tensors])
        self.launcher = launch.Launcher(module, dtypes, sizes)

    def squared_norms(self) -> Any:
        """Tell the device the addresses, and measure."""
        addresses = [0 if t is None else t.data_ptr() for t in self.tensors]
        self.launcher.store_addresses(np.array(addresses, np.uint64))
        self.launcher.squared_norms(self.sums)
        return self.sums

    def step(self, h: Any) -> None:
        """Make both passes; no gradient is discarded."""
        self.squared_norms()
        self.launcher.scale(h, self.kept)


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


def load_kernels(framework: Torch) -> tuple[Any, dict[str, Any]]:
    """Compile the kernels for the current GPU and load them.

    NVRTC is the framework's: a newer one than the driver's CUDA may make code
    that the driver refuses.
    """
    module = launch.Kernels(
        ctypes.CDLL(DRIVER),
        0,
        lambda device: framework.stream(),
        framework.empty,
    )
    version = ctypes.c_int()
    module.call("cuDriverGetVersion", ctypes.byref(version))
    nvrtc = launch.load_nvrtc(framework.cuda_major())
    target = launch.pick_target(nvrtc, module.capability)
    start = time.perf_counter()
    image, _ = launch.compile_source(nvrtc, launch.SOURCE.read_text(), target)
    compiled = time.perf_counter()
    module.load(image)
    facts = {
        "driver": version.value,
        "target": target,
        "nvrtc": ".".join(map(str, launch.nvrtc_version(nvrtc))),
        "nvrtc_file": nvrtc._name,
        "compile_ms": 1e3 * (compiled - start),
        "load_ms": 1e3 * (time.perf_counter() - compiled),
    }
    return module, facts


def launch_rule(
    module: Any, framework: Torch, rule: Any, squared_norm: Any, gamma: Any
) -> dict[str, np.ndarray]:
    """Start the fused rule on vectors of the device; read what it gives."""
    count = framework.tensor(np.zeros(gamma.shape), "int32")
    found = module.adaptive_step(rule, squared_norm, gamma, count)
    return {
        name: framework.wide(vector)
        for name, vector in found._asdict().items()
        if vector is not None
    }


def expected_of_rule(
    rule: Any, squares: np.ndarray, old: np.ndarray
) -> dict[str, np.ndarray]:
    """Return what :func:`launch_rule` should; all is float32."""
    rel, rest, h_of_nonfinite = (
        np.float32(getattr(rule, name)) for name, _ in rule._fields_
    )
    with np.errstate(all="ignore"):
        norm = np.sqrt(squares.astype(np.float64)).astype(np.float32)
        lost = ~np.isfinite(norm)
        one, zero = np.float32(1), np.float32(0)
        h = np.where(lost, zero, np.fmin(rel * old / norm, one))
        clipped = h * norm
        is_observed = np.isfinite(clipped) & (clipped > 0)
        average = np.where(
            np.isfinite(old), old + rest * (clipped - old), clipped
        )
        found = {
            "norm": norm,
            "h": np.where(lost, h_of_nonfinite, h),
            "gamma": np.where(is_observed, average, old),
            "num_nonfinite": lost,
        }
        if not h_of_nonfinite:
            found["discard"] = lost
    return found


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
        lists = Lists(module, framework, tensors)
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
                functools.partial(lists.step, h)
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


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Give floats four significant digits."""
    return {
        key: float(f"{value:.4g}") if isinstance(value, float) else value
        for key, value in row.items()
    }
