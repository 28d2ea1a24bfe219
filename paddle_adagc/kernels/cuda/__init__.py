# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels on Paddle's tensors, in Paddle's stream.

A list of ``n`` tensors takes ``ceil(n / 480) + 3`` launches (two more for each
further dtype), no host wait, and one copy to the device when a tensor has a new
size or dtype. A missing gradient keeps its tensor's place in the tables.

The launches may be captured in a CUDA graph after a first step outside of it;
the clip as a whole may not: the step count, the end of the warm-up and the list
of tensors are the host's.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.base import libpaddle

from paddle_adagc.kernels import host
from paddle_adagc.kernels.cuda import launch
from paddle_adagc.kernels.host import Segments, TensorList

logger = logging.getLogger(__name__)

DRIVER = "libcuda.so.1"

_LOADED: dict[int, launch.Kernels | str] = {}
"""By device: the kernels, or why there are none."""


def current_device() -> int | None:
    """Index of the NVIDIA GPU that new tensors lie on; None if they do not."""
    kind, _, index = paddle.device.get_device().partition(":")
    is_cuda = kind == "gpu" and not paddle.is_compiled_with_rocm()
    return int(index) if is_cuda else None


def current_stream(device: int) -> int:
    """Handle of the stream that Paddle launches into."""
    library: Any = libpaddle  # without a stub
    if hasattr(library, "_get_current_raw_stream"):
        return library._get_current_raw_stream(device)
    return library._get_current_stream(device).cuda_stream  # before Paddle 3.3


def load_kernels(device: int | None) -> launch.Kernels | None:
    """Return a device's kernels, for launches by this thread; None: none."""
    if device is None:
        return None
    if device not in _LOADED:
        _LOADED[device] = _load(device)
    kernels = _LOADED[device]
    if isinstance(kernels, str):
        return None
    kernels.use_context()
    return kernels


def why_not(device: int) -> str:
    """Why the kernels are not used on a device; empty if they are."""
    return "" if load_kernels(device) else str(_LOADED[device])


def _load(device: int) -> launch.Kernels | str:
    """Load the kernels, compiled when they are not in the cache."""
    if os.environ.get("PADDLE_ADAGC_NATIVE", "1") == "0":
        return "PADDLE_ADAGC_NATIVE=0"
    try:
        cuda = ctypes.CDLL(DRIVER)
        kernels = launch.Kernels(cuda, device, current_stream, empty)
        kernels.stream()
        major = str(paddle.version.cuda()).split(".")[0]
        nvrtc = launch.load_nvrtc(major)
        target = launch.pick_target(nvrtc, kernels.capability)
        source, version = launch.SOURCE.read_text(), launch.nvrtc_version(nvrtc)
        parts = [source, target, *launch.OPTIONS, str(version)]

        def make() -> bytes:
            return launch.compile_source(nvrtc, source, target)[0]

        kernels.load(host.keep_or_make("cuda", parts, make))
        return kernels
    # Whatever is wrong with driver, compiler or cache: no step ends by it.
    except Exception as error:
        logger.warning(
            "the CUDA kernels cannot be used (%s): the clip uses Paddle's "
            "operators",
            error,
        )
        return str(error) or type(error).__name__


_NAMES = np.array([str(d).removeprefix("paddle.") for d in host.DTYPES])


def empty(count: int, dtype: str) -> Tensor:
    """Make a vector of unknown values."""
    return paddle.empty([count], dtype)


class DeviceTensors(TensorList):
    """Dense tensors on the current NVIDIA GPU."""

    @staticmethod
    def can_take(descriptors: np.ndarray) -> np.ndarray:
        """Dense tensors on the current GPU, of a dtype that is known."""
        kernels = load_kernels(current_device())
        if kernels is None:
            return np.zeros(len(descriptors), bool)
        is_here = descriptors["device"] == host.CUDA << 8 | kernels.device
        return (descriptors["dtype"] >= 0) & is_here

    def squared_norms(self) -> Tensor:
        """float32 ``[num_entries]``, in Paddle's stream; 0 at a gap."""
        out = empty(self.num_entries, "float32")
        self._launcher().squared_norms(out)
        return out

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply by ``h``, or set to 0 where ``discard``, in the stream."""
        self._launcher().scale(h.contiguous(), discard)
        for tensor in () if self.is_marked else self.tensors:
            if tensor is not None:
                tensor._bump_inplace_version()

    @functools.cached_property
    def _tables(self) -> _Tables:
        return _find_tables(self.descriptors, self.segments)

    def _launcher(self) -> launch.Launcher:
        """Return the tables, once the device has these tensors' addresses."""
        if self._tables.known() is not self:
            found = self.descriptors  # a view of no values has an address
            addresses = found["address"] * (found["size"] > 0)
            self._tables.store_addresses(addresses.astype(np.uint64))
            self._tables.known = weakref.ref(self)
        return self._tables


class _Tables(launch.Launcher):
    """Tables for lists of the same segments; the device knows one at a time.

    ``descriptors`` are those of every segment known so far.
    """

    def __init__(self, key: _Key, descriptors: np.ndarray) -> None:
        kernels, *_, segments = self.key = key
        self.descriptors = descriptors
        self.known: Callable[[], DeviceTensors | None] = lambda: None
        super().__init__(
            kernels,
            _NAMES[descriptors["dtype"]],
            descriptors["size"],
            *((segments.runs, segments.num_entries) if segments else ()),
        )


_Key = tuple[launch.Kernels, int | None, int, int, Segments | None]
"""Of a list: kernels, handle of the stream, thread (a launch lets others run),
number of segments, segments."""
_TABLES: list[_Tables] = []  # the last used first
_MOST_TABLES = 16


def _find_tables(descriptors: np.ndarray, segments: Segments | None) -> _Tables:
    """Return tables of these segments, also of those without a gradient now.

    Earlier tables are used if no size and dtype differs; new ones replace
    tables that lack tensors.
    """
    kernels = load_kernels(current_device())
    assert kernels is not None
    handle, thread = kernels.stream().value, threading.get_ident()
    key = kernels, handle, thread, len(descriptors), segments
    found = replaced = None
    for old in [*_TABLES]:
        mine = old.descriptors
        if old.key != key:
            continue
        is_new = descriptors["size"] != mine["size"]
        is_new |= descriptors["dtype"] != mine["dtype"]
        is_new &= descriptors["size"] > 0
        if mine["size"][is_new].any():
            continue
        if is_new.any():
            descriptors = np.where(is_new, descriptors, mine)
        else:
            found = old
        replaced = old
        break
    found = found or _Tables(key, descriptors)
    others = [tables for tables in _TABLES if tables is not replaced]
    _TABLES[:] = [found, *others][:_MOST_TABLES]  # other threads keep some, too
    return found


def adaptive_step(
    squared_norm: Tensor,
    gamma: Tensor,
    num_nonfinite: Tensor,
    *,
    lambda_rel: float,
    beta: float,
    zeroes_nonfinite: bool,
) -> launch.AdaptiveStep | None:
    """Apply :mod:`paddle_adagc.rule` on the current NVIDIA GPU.

    Every operation is rounded as IEEE says. Paddle's division on a CPU misses
    the last bit on some processors.

    The vectors are float32 ``[num_tensors]``, but ``num_nonfinite``, how often
    each norm was not finite, int32. A gradient with a non-finite norm becomes 0
    if ``zeroes_nonfinite``, else its ``h`` is 1. Returns new vectors; None
    where the kernels cannot take these, and for ``beta`` below 0.5: the
    kernel's sum begins at gamma, and would lose the digits of a small norm
    beside a large gamma (:func:`.rule.between`).
    """
    kernels = load_kernels(current_device())
    if kernels is None:
        return None
    vectors = squared_norm, gamma, num_nonfinite
    dtypes = [paddle.float32, paddle.float32, paddle.int32]
    known = host.describe(vectors)
    if (
        [vector.dtype for vector in vectors] != dtypes
        or (known["device"] != host.CUDA << 8 | kernels.device).any()
        or (known["size"] != gamma.size).any()
        or gamma.size == 0
        or beta < 0.5
    ):
        return None
    rule = launch.Rule(lambda_rel, 1.0 - beta, not zeroes_nonfinite)
    return kernels.adaptive_step(rule, *vectors)
