# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels on Paddle's tensors, in Paddle's current stream.

A list of ``n`` tensors takes ``ceil(n / 480) + 3`` launches (two more for each
further dtype), no host wait, and one copy to the device when a tensor of a new
size or dtype is met. A missing gradient keeps its tensor's place in the tables.

The launches may be captured in a CUDA graph after a first step outside of it;
the clip as a whole may not: the step count, the end of the warm-up and the list
of tensors are the host's.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.kernels import host
from paddle_adagc.kernels.cuda import (
    current_device,
    current_stream,
    launch,
    load_module,
)
from paddle_adagc.kernels.host import Segments, TensorList

_NAMES = ("float32", "float64", "bfloat16", "float16")
"""In the order of the codes in ``host.py``."""


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
        return load_module(current_device()) is not None

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
        runs, num_slots = None, 0
        if segments is not None:
            runs, num_slots = segments.runs, segments.num_slots
        names = [_NAMES[code] for code in descriptors["dtype"]]
        tables = launch.Tables(names, descriptors["size"], runs, num_slots)
        self._memory = paddle.empty([tables.num_bytes], "uint8")
        self._launcher = launch.Launcher(
            load_module(device), tables, self._memory.data_ptr(), stream
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
    """Apply :mod:`paddle_adagc.rule` on the current NVIDIA GPU, with its bits.

    The vectors are float32 ``[num_tensors]``, but ``num_nonfinite``, how often
    each norm was not finite, int32. A tensor with a non-finite norm is ``lost``
    if ``zeroes_nonfinite``, else its ``h`` is 1. Returns new vectors; None if
    this is no NVIDIA GPU, has no kernels, or a vector is of no tensors, of
    another dtype or lies elsewhere: Paddle's operators then move it.
    """
    device = current_device()
    module = load_module(device)
    if device is None or module is None:
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
        module,
        current_stream(device),
        gamma.shape[0],
        launch.Rule(lambda_rel, 1.0 - beta, h_of_nonfinite),
        squared_norm.data_ptr(),
        [*map(_address, held)],
    )
    return AdaptiveStep(norm, h, new_gamma, lost, count)


def _address(vector: Tensor | None) -> int | None:
    return None if vector is None else vector.data_ptr()
