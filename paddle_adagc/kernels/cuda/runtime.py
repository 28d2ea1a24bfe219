# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the process runs the kernels with: Paddle's GPU, its stream, a driver.

The tests replace no function here. They give it emulated libraries and, for
Paddle, the answers that a GPU build would give.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
from paddle.base import libpaddle

from paddle_adagc.kernels import host
from paddle_adagc.kernels.cuda import driver
from paddle_adagc.kernels.cuda.tables import DEFINES

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("multi_tensor.cu")
DRIVER = "libcuda.so.1"

_LOADED: dict[int, driver.Module | str] = {}
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


def load_module(device: int) -> driver.Module | None:
    """Return a device's kernels; None, after a warning, without any."""
    found = _find(device)
    if isinstance(found, str):
        return None
    found.make_current()
    return found


def why_not(device: int) -> str:
    """Why the kernels are not used on a device; empty if they are."""
    found = _find(device)
    return found if isinstance(found, str) else ""


def leave_to_operators(device: int, reason: str) -> None:
    """Use no kernels on a device from now on."""
    _LOADED[device] = reason


def _find(device: int) -> driver.Module | str:
    if device in _LOADED:
        return _LOADED[device]
    if os.environ.get("PADDLE_ADAGC_NATIVE", "1") == "0":
        _LOADED[device] = "PADDLE_ADAGC_NATIVE=0"
        return _LOADED[device]
    try:
        _stream_reader()
        _LOADED[device] = _load(device)
    # Whatever is wrong with driver, compiler or cache: no step ends by it.
    except Exception as error:
        logger.warning(
            "the CUDA kernels cannot be used (%s): the clip uses Paddle's "
            "operators",
            error,
        )
        _LOADED[device] = str(error) or type(error).__name__
    return _LOADED[device]


def _load(device: int) -> driver.Module:
    """Load the kernels, compiled when they are not in the cache."""
    cuda = driver.Driver(ctypes.CDLL(DRIVER))
    major = str(paddle.version.cuda()).split(".")[0]
    compiler = driver.Compiler(driver.load_nvrtc(major))
    target = compiler.target(cuda.capability(device))
    source = SOURCE.read_text()
    options = (*driver.OPTIONS, *DEFINES)
    parts = (source, target, *options, str(compiler.version))
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def make() -> bytes:
        return compiler.compile(source, target, options)[0]

    try:
        image = host.keep(f"cuda-{name}", make)
    except OSError:  # the cache cannot be used
        image = make()
    return cuda.load(image, cuda.context(device))
