# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels on Paddle's tensors, in Paddle's current stream.

A list of ``n`` tensors takes ``ceil(n / 480) + 3`` launches (two more for each
further dtype), no host wait, and one copy to the device when a list with other
sizes or dtypes is met for the first time.

The launches may be captured in a CUDA graph after a first step outside of it;
the clip as a whole may not: the step count, the end of the warm-up and the list
of tensors are the host's.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.base import libpaddle

from paddle_adagc.kernels.build import cache_dir, keep
from paddle_adagc.kernels.cuda import driver
from paddle_adagc.kernels.cuda.tables import DEFINES, Launcher, Tables
from paddle_adagc.kernels.facts import CUDA, current_memory

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("multi_tensor.cu")
_NAMES = ("float32", "float64", "bfloat16", "float16")
"""In the order of the codes in ``facts.py``."""


class DeviceTensors:
    """Dense tensors on the current NVIDIA GPU.

    Args:
        tensors: None stands for no tensor.
        facts: :data:`paddle_adagc.kernels.facts.FACTS` of each.

    Attributes:
        addresses: uint64 ``[num_tensors]``.
    """

    def __init__(
        self, tensors: Sequence[Tensor | None], facts: np.ndarray
    ) -> None:
        self._held = tensors  # so that the addresses stay theirs
        self.addresses = facts["address"].astype(np.uint64)
        device = current_device()
        assert device is not None
        self._lists = _lists(
            device,
            current_stream(device),
            facts["dtype"].tobytes(),
            facts["size"].tobytes(),
        )

    @staticmethod
    def is_available() -> bool:
        """Whether the current device is a GPU that the kernels run on."""
        device = current_device()
        return device is not None and load_module(device) is not None

    @staticmethod
    def can_take(facts: np.ndarray) -> np.ndarray:
        """Which tensors the kernels are made for, bool ``[num_tensors]``."""
        return (facts["dtype"] >= 0) & (facts["device"] == current_memory())

    def squared_norms(self) -> Tensor:
        """float32 ``[num_tensors]``; 0 for None."""
        out = paddle.empty([len(self._held)], "float32")
        self._lists.of(self).squared_norms(out.data_ptr())
        return out

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply each by its ``h``, unless that is 1; or set it to 0."""
        h = h.contiguous()
        self._lists.of(self).scale(
            h.data_ptr(), None if discard is None else discard.data_ptr()
        )
        for tensor in self._held:
            if tensor is not None:
                tensor._bump_inplace_version()


class _Lists:
    """All lists of the same sizes and dtypes; the device knows one at a time.

    Args:
        module: The kernels.
        stream: Handle of the stream.
        tables: Of these lists.
    """

    def __init__(
        self, module: driver.Module, stream: int, tables: Tables
    ) -> None:
        self._memory = paddle.empty([tables.num_bytes], "uint8")
        self._launcher = Launcher(
            module, tables, self._memory.data_ptr(), stream
        )
        self._known: weakref.ref[DeviceTensors] | None = None

    def of(self, tensors: DeviceTensors) -> Launcher:
        """Return the launcher, once the device has the tensors' addresses."""
        if self._known is None or self._known() is not tensors:
            self._launcher.store_addresses(tensors.addresses)
            self._known = weakref.ref(tensors)
        return self._launcher


@functools.lru_cache(maxsize=16)
def _lists(device: int, stream: int, dtypes: bytes, sizes: bytes) -> _Lists:
    module = load_module(device)
    assert module is not None
    names = [_NAMES[code] for code in np.frombuffer(dtypes, np.int64)]
    return _Lists(module, stream, Tables(names, np.frombuffer(sizes, np.int64)))


@functools.cache
def load_module(device: int) -> driver.Module | None:
    """Return a device's kernels; None, after a warning, without any."""
    if os.environ.get("PADDLE_ADAGC_NATIVE", "1") == "0":
        return None
    try:
        _stream_reader()
        cuda = driver.Driver(ctypes.CDLL("libcuda.so.1"))
        cuda.use_context(device)
        return _load(cuda, cuda.capability(device))
    # Whatever is wrong with driver, compiler or cache: no step ends by it.
    except Exception as error:
        logger.warning(
            "the CUDA kernels cannot be used (%s): the clip uses Paddle's "
            "operators",
            error,
        )
        return None


def _load(cuda: driver.Driver, capability: int) -> driver.Module:
    """Load the kernels; compile them again, once, if the kept ones are bad."""
    major = str(paddle.version.cuda()).split(".")[0]
    compiler = driver.Compiler(driver.load_nvrtc(major))
    target = compiler.target(capability)
    source = SOURCE.read_text()
    options = (*driver.OPTIONS, *DEFINES)
    parts = (source, target, *options, str(compiler.version))
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    path = cache_dir() / f"cuda-{name}"

    def make(path: Path) -> None:
        path.write_bytes(compiler.compile(source, target, options)[0])

    try:
        image = keep(path, make).read_bytes()
    except OSError:  # the cache cannot be written
        return cuda.load(compiler.compile(source, target, options)[0])
    try:
        return cuda.load(image)
    except driver.CudaError:
        path.unlink()
        return cuda.load(keep(path, make).read_bytes())


def current_device() -> int | None:
    """Index of the NVIDIA GPU that new tensors lie on; None if they do not."""
    kind, index = divmod(current_memory(), 1 << 8)
    return index if kind == CUDA else None


def current_stream(device: int) -> int:
    """Handle of the stream that Paddle launches into."""
    return _stream_reader()(device)


def _stream_reader() -> Callable[[int], int]:
    library: Any = libpaddle  # without a stub
    if hasattr(library, "_get_current_raw_stream"):
        return library._get_current_raw_stream
    # Paddle before 3.3.
    get_stream = library._get_current_stream
    return lambda device: get_stream(device).cuda_stream
