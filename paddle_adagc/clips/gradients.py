# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's two passes over the gradients: measure them, scale them.

Gradients may be float32, float64, bfloat16 or float16, dense or SelectedRows
(the gradient of a sparse embedding); norms are float32 whatever they are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np
import paddle
from paddle import Tensor, _C_ops

from paddle_adagc import kernels
from paddle_adagc.kernels.cuda import DeviceTensors
from paddle_adagc.kernels.host import NO_TENSOR, Segments, TensorList, describe


@dataclasses.dataclass(eq=False)
class GradientList:
    """The gradients of one call, each with the first backend that can take it.

    Raises:
        TypeError: In a pass, for a gradient of another dtype.
    """

    gradients: Sequence[Tensor | None]
    segments: Segments | None = None
    """The units in them; None: each gradient is one unit."""

    descriptors: np.ndarray | None = None
    """Of dense gradients that a ``PairReader`` has read."""

    is_on_gpu: bool = False
    """The CUDA kernels have some of the gradients; known once measured."""

    @functools.cached_property
    def _parts(self) -> list[TensorList]:
        values, read = self.gradients, self.descriptors
        if read is None:
            values = [*map(_values, values)]
        parts = split(values, self.segments, read)
        for part in parts:
            part.is_marked = read is not None
            self.is_on_gpu |= isinstance(part, DeviceTensors)
        return parts

    def squared_norms(self) -> Tensor:
        """Squared L2 norm of every gradient, float32 ``[num_tensors]``.

        0 for None. Inf or NaN where the gradient holds one, Inf where the
        squared norm overflows float32 (a norm above 1.8e19).
        """
        parts = self._parts
        if self.descriptors is None and any(map(_is_sparse, self.gradients)):
            merged = (_values(g, adds_up=True) for g in self.gradients)
            parts = split(merged, self.segments)
        if not parts:
            segments = self.segments
            size = segments.num_entries if segments else len(self.gradients)
            return paddle.zeros([size], dtype="float32")
        total = parts[0].squared_norms()
        for part in parts[1:]:  # each is 0 where it has no tensor
            total = _C_ops.add(total, part.squared_norms())
        return total

    def share_memory(self) -> bool:
        """Whether two begin at the same address; slices: two contiguous."""
        if not self._parts:
            return False
        found = np.concatenate([part.descriptors for part in self._parts])
        is_known = (found["dtype"] >= 0) | (self.segments is None)
        is_known &= found["size"] > 0
        addresses = np.sort(found["address"][is_known])
        return bool((addresses[1:] == addresses[:-1]).any())

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply every gradient by its entry of ``h``, in place.

        Low-precision values are scaled in float32 and rounded once. The kernels
        neither read nor write a gradient whose ``h`` is 1. Where ``discard``,
        bool ``[num_tensors]``, is true the gradient becomes 0, Inf and NaN too.
        """
        if not self._parts:
            return
        size = self._parts[0].num_entries  # compiled code reads as many values
        for name, vector, dtype in (
            ("h", h, paddle.float32),
            ("discard", discard, paddle.bool),
        ):
            if vector is not None and (
                vector.shape != [size] or vector.dtype != dtype
            ):
                raise ValueError(
                    f"{name} is {vector.dtype} of shape {[*vector.shape]}: it "
                    f"must be {dtype} of shape {[size]}"
                )
        try:
            for part in self._parts:
                part.scale_(h, discard)
        except Exception as error:
            raise RuntimeError(
                "scaling the gradients failed: some may be clipped and others "
                "not. The clip's state is that before the step: call "
                "clear_grad() and compute the gradients again"
            ) from error


def split(
    tensors: Iterable[Tensor | None],
    segments: Segments | None = None,
    descriptors: np.ndarray | None = None,
) -> list[TensorList]:
    """Give each tensor to the first backend that can take it.

    ``descriptors`` are those of the tensors, if they were read already; None
    among ``tensors`` stands for no tensor. Gives a list per backend in use, as
    long as ``tensors``, with gaps where another backend has the tensor.
    """
    rest = list(tensors)
    if descriptors is None:
        descriptors = describe(rest)
    is_left = descriptors["device"] != 0
    parts: list[TensorList] = []
    for backend in kernels.BACKENDS:
        if not is_left.any():
            break
        taken = is_left & backend.can_take(descriptors)
        if taken.all():
            return [backend(rest, descriptors, segments)]
        if taken.any():
            pairs = zip(rest, taken, strict=True)
            mine = [tensor if is_mine else None for tensor, is_mine in pairs]
            known = np.where(taken, descriptors, NO_TENSOR)
            parts.append(backend(mine, known, segments))
            is_left &= ~taken
    return parts


def _is_sparse(gradient: Tensor | None) -> bool:
    return gradient is not None and bool(gradient.is_selected_rows())


def _values(gradient: Tensor | None, adds_up: bool = False) -> Tensor | None:
    """View a sparse gradient's rows, or copy them with repeated ones added."""
    if gradient is None or not gradient.is_selected_rows():
        return gradient
    if not gradient._is_initialized():
        return None  # without rows
    if adds_up:
        gradient = _C_ops.merge_selected_rows(gradient)
    return gradient._get_tensor_from_selected_rows()
