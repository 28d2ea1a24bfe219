# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels through NVRTC and the driver API; not run on a GPU so far.

Here: what the process runs them with, Paddle's GPU, its stream, a driver.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
from collections.abc import Callable
from typing import Any

import paddle
from paddle.base import libpaddle

from paddle_adagc.kernels import host
from paddle_adagc.kernels.cuda import launch

logger = logging.getLogger(__name__)

DRIVER = "libcuda.so.1"

_LOADED: dict[int, launch.Module | str] = {}
"""By device: the kernels, or why there are none."""


def current_device() -> int | None:
    """Index of the NVIDIA GPU that new tensors lie on; None if they do not."""
    kind, index = divmod(host.current_memory(), 1 << 8)
    return index if kind == host.CUDA else None


def current_stream(device: int) -> int:
    """Handle of the stream that Paddle launches into."""
    return _stream_reader()(device)


def _stream_reader() -> Callable[[int], int]:
    library: Any = libpaddle  # without a stub
    if hasattr(library, "_get_current_raw_stream"):
        return library._get_current_raw_stream
    get_stream = library._get_current_stream  # Paddle before 3.3
    return lambda device: get_stream(device).cuda_stream


def load_module(device: int | None) -> launch.Module | None:
    """Return a device's kernels, for launches by this thread; None: none."""
    if device is None or why_not(device):
        return None
    module: Any = _LOADED[device]
    module.driver.use_context()
    return module


def why_not(device: int) -> str:
    """Why the kernels are not used on a device; empty if they are."""
    if device not in _LOADED:
        _LOADED[device] = _load(device)
    found = _LOADED[device]
    return found if isinstance(found, str) else ""


def leave_to_operators(device: int, reason: str) -> None:
    """Use no kernels on a device from now on."""
    _LOADED[device] = reason


def _load(device: int) -> launch.Module | str:
    """Load the kernels, compiled when they are not in the cache."""
    if os.environ.get("PADDLE_ADAGC_NATIVE", "1") == "0":
        return "PADDLE_ADAGC_NATIVE=0"
    try:
        _stream_reader()
        driver = launch.Driver(ctypes.CDLL(DRIVER), device)
        major = str(paddle.version.cuda()).split(".")[0]
        compiler = launch.Compiler(launch.load_nvrtc(major))
        target = compiler.target(driver.capability)
        source = launch.SOURCE.read_text()
        parts = (source, target, *launch.OPTIONS, str(compiler.version))
        name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

        def make() -> bytes:
            return compiler.compile(source, target)[0]

        try:
            image = host.keep(f"cuda-{name}", make)
        except OSError:  # the cache cannot be used
            image = make()
        return driver.load(image)
    # Whatever is wrong with driver, compiler or cache: no step ends by it.
    except Exception as error:
        logger.warning(
            "the CUDA kernels cannot be used (%s): the clip uses Paddle's "
            "operators",
            error,
        )
        return str(error) or type(error).__name__
