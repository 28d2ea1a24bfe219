# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels on Paddle's tensors, in Paddle's stream; not run on a GPU.

A list of ``n`` tensors takes ``ceil(n / 480) + 3`` launches (two more for each
further dtype), no host wait, and one copy to the device when a tensor of a new
size or dtype is met. A missing gradient keeps its tensor's place in the tables.

The launches may be captured in a CUDA graph after a first step outside of it;
the clip as a whole may not: the step count, the end of the warm-up and the list
of tensors are the host's.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


def load_kernels(device: int | None) -> launch.Kernels | None:
    """Return a device's kernels, for launches by this thread; None: none."""
    if device is None or why_not(device):
        return None
    kernels: Any = _LOADED[device]
    kernels.use_context()
    return kernels


def why_not(device: int) -> str:
    """Why the kernels are not used on a device; empty if they are."""
    if device not in _LOADED:
        _LOADED[device] = _load(device)
    found = _LOADED[device]
    return found if isinstance(found, str) else ""


def leave_to_operators(device: int, reason: str) -> None:
    """Use no kernels on a device from now on."""
    _LOADED[device] = reason


def _load(device: int) -> launch.Kernels | str:
    """Load the kernels, compiled when they are not in the cache."""
    if os.environ.get("PADDLE_ADAGC_NATIVE", "1") == "0":
        return "PADDLE_ADAGC_NATIVE=0"
    try:
        _stream_reader()
        kernels = launch.Kernels(ctypes.CDLL(DRIVER), device)
        major = str(paddle.version.cuda()).split(".")[0]
        nvrtc = launch.load_nvrtc(major)
        target = launch.pick_target(nvrtc, kernels.capability)
        source, version = launch.SOURCE.read_text(), launch.nvrtc_version(nvrtc)
        parts = [source, target, *launch.OPTIONS, str(version)]

        def make() -> bytes:
            return launch.compile_source(nvrtc, source, target)[0]

        try:
            image = host.keep("cuda", parts, make)
        except OSError:  # the cache cannot be used
            image = make()
        kernels.load(image)
        return kernels
    # Whatever is wrong with driver, compiler or cache: no step ends by it.
    except Exception as error:
        logger.warning(
            "the CUDA kernels cannot be used (%s): the clip uses Paddle's "
            "operators",
            error,
        )
        return str(error) or type(error).__name__


_NAMES = [str(dtype).removeprefix("paddle.") for dtype in host.DTYPES]


class DeviceTensors(TensorList):
    """Dense tensors on the current NVIDIA GPU."""

    def __init__(
        self,
        tensors: Sequence[Tensor | None],
        descriptors: np.ndarray,
        segments: Segments | None = None,
    ) -> None:
        super().__init__(tensors, descriptors, segments)
        self._lists = _find_lists(self.descriptors, segments)

    @staticmethod
    def is_available() -> bool:
        return load_kernels(current_device()) is not None

    @staticmethod
    def can_take(descriptors: np.ndarray) -> np.ndarray:
        is_here = descriptors["device"] == host.current_memory()
        return (descriptors["dtype"] >= 0) & is_here

    def squared_norms(self) -> Tensor:
        out = paddle.empty([self.num_slots], "float32")
        self._lists.of(self).squared_norms(out.data_ptr())
        return out

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        h = h.contiguous()
        self._lists.of(self).scale(h.data_ptr(), _address(discard))
        for tensor in () if self.is_told else self.tensors:
            if tensor is not None:
                tensor._bump_inplace_version()


class _Lists:
    """Tables for lists of one set of slots; the device knows one at a time.

    ``key`` is the GPU, its stream's handle, the number of segments, and the
    segments of :class:`DeviceTensors`. ``descriptors`` are those of every
    segment met so far.
    """

    def __init__(self, key: _Key, descriptors: np.ndarray) -> None:
        device, stream, _, segments = self.key = key
        self.descriptors = descriptors
        names = [_NAMES[code] for code in descriptors["dtype"]]
        own = (segments.runs, segments.num_slots) if segments else ()
        self._launcher = launch.Launcher(
            load_kernels(device),
            stream,
            lambda num_bytes: paddle.empty([num_bytes], "uint8"),
            names,
            descriptors["size"],
            *own,
        )
        self._known: weakref.ref[DeviceTensors] | None = None

    def with_new(self, descriptors: np.ndarray) -> np.ndarray | None:
        """Add what these tables lack; None if a size or dtype differs.

        Gives the tables' own descriptors if they lack nothing.
        """
        mine = self.descriptors
        is_new = descriptors["size"] != mine["size"]
        is_new |= descriptors["dtype"] != mine["dtype"]
        is_new &= descriptors["size"] > 0
        if not is_new.any():
            return mine
        if mine["size"][is_new].any():
            return None
        return np.where(is_new, descriptors, mine)

    def of(self, tensors: DeviceTensors) -> launch.Launcher:
        """Return the launcher, once the device has the tensors' addresses."""
        if self._known is None or self._known() is not tensors:
            addresses = tensors.descriptors["address"].astype(np.uint64)
            self._launcher.store_addresses(addresses)
            self._known = weakref.ref(tensors)
        return self._launcher


_Key = tuple[int, int, int, Segments | None]
_KEPT: list[_Lists] = []  # the last used first
_MOST_KEPT = 16


def _find_lists(descriptors: np.ndarray, segments: Segments | None) -> _Lists:
    """Return the tables of these slots, with those that now lack a gradient."""
    device = current_device()
    assert device is not None
    key = device, current_stream(device), len(descriptors), segments
    for old in _KEPT:
        if old.key != key or (known := old.with_new(descriptors)) is None:
            continue
        found = old if known is old.descriptors else _Lists(key, known)
        rest = [other for other in _KEPT if other is not old]
        break
    else:
        found, rest = _Lists(key, descriptors), _KEPT
    _KEPT[:] = [found, *rest][:_MOST_KEPT]
    return found


class AdaptiveStep(NamedTuple):
    """Result of the rule, each ``[num_tensors]``, float32 unless said."""

    norm: Tensor
    h: Tensor
    gamma: Tensor
    lost: Tensor | None  # bool; whose gradient becomes 0
    num_nonfinite: Tensor  # int32


def adaptive_step(
    squared_norm: Tensor,
    gamma: Tensor,
    num_nonfinite: Tensor,
    *,
    lambda_rel: float,
    beta: float,
    zeroes_nonfinite: bool,
) -> AdaptiveStep | None:
    """Apply :mod:`paddle_adagc.rule` on the current NVIDIA GPU.

    Every operation is rounded as IEEE says. Paddle's division on a CPU misses
    the last bit on some processors.

    The vectors are float32 ``[num_tensors]``, but ``num_nonfinite``, how often
    each norm was not finite, int32. A tensor with a non-finite norm is ``lost``
    if ``zeroes_nonfinite``, else its ``h`` is 1. Returns new vectors; None if
    this is no NVIDIA GPU, has no kernels, or a vector is of no tensors, of
    another dtype or lies elsewhere: Paddle's operators then move it.
    """
    device = current_device()
    kernels = load_kernels(device)
    if device is None or kernels is None:
        return None
    vectors = squared_norm, gamma, num_nonfinite
    dtypes = [paddle.float32, paddle.float32, paddle.int32]
    known = host.describe(vectors)
    if (
        [vector.dtype for vector in vectors] != dtypes
        or (known["device"] != host.current_memory()).any()
        or (known["size"] != gamma.size).any()
        or gamma.size == 0
    ):
        return None
    norm, h, new_gamma = (paddle.empty_like(gamma) for _ in range(3))
    lost = paddle.empty(gamma.shape, "bool") if zeroes_nonfinite else None
    count = paddle.empty_like(num_nonfinite)
    held = (gamma, norm, h, new_gamma, lost, num_nonfinite, count)
    h_of_nonfinite = 0.0 if zeroes_nonfinite else 1.0
    launch.launch_adaptive_step(
        kernels,
        current_stream(device),
        gamma.shape[0],
        launch.Rule(lambda_rel, 1.0 - beta, h_of_nonfinite),
        squared_norm.data_ptr(),
        [*map(_address, held)],
    )
    return AdaptiveStep(norm, h, new_gamma, lost, count)


def _address(vector: Tensor | None) -> int | None:
    return None if vector is None else vector.data_ptr()
