# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's two passes over the gradients: measure them, scale them.

Gradients may be float32, float64, bfloat16 or float16, dense or SelectedRows
(the gradient of a sparse embedding); norms are float32 whatever they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import paddle
from paddle import Tensor, _C_ops

from paddle_adagc import kernels
from paddle_adagc.kernels.cuda import DeviceTensors
from paddle_adagc.kernels.host import (
    NO_TENSOR,
    Segments,
    TensorList,
    describe,
)
from paddle_adagc.parallel.reduce import Reducer


class GradientList:
    """The gradients of one call, each with the first backend that can take it.

    ``segments`` are the units in them; None: each gradient is one unit.
    ``descriptors`` are of dense gradients that a ``PairReader`` has read.
    """

    def __init__(
        self,
        gradients: Sequence[Tensor | None],
        segments: Segments | None = None,
        descriptors: np.ndarray | None = None,
    ) -> None:
        self._gradients = gradients
        self._segments = segments
        self._size = segments.num_entries if segments else len(gradients)
        self._has_rows = descriptors is None and any(
            gradient is not None and gradient.is_selected_rows()
            for gradient in gradients
        )
        values = map(_values, gradients) if self._has_rows else gradients
        self._parts = split(values, segments, descriptors)
        self.is_on_gpu = DeviceTensors in map(type, self._parts)
        """The CUDA kernels have some of the gradients."""

        for part in self._parts if descriptors is not None else ():
            part.is_marked = True

    def squared_norms(self) -> Tensor:
        """Squared L2 norm of every gradient, float32 ``[num_tensors]``.

        0 for None. Inf or NaN where the gradient holds one, Inf where the
        squared norm overflows float32 (a norm above 1.8e19).
        """
        parts = self._parts
        if self._has_rows:
            merged = (_values(g, True) for g in self._gradients)
            parts = split(merged, self._segments)
        if not parts:
            return paddle.zeros([self._size], dtype="float32")
        total = parts[0].squared_norms()
        for part in parts[1:]:  # each is 0 where it has no tensor
            total = _C_ops.add(total, part.squared_norms())
        return total

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply every gradient by its entry of ``h``, in place.

        Low-precision values are scaled in float32 and rounded once. The kernels
        neither read nor write a gradient whose ``h`` is 1. Where ``discard``,
        bool ``[num_tensors]``, is true the gradient becomes 0, Inf and NaN too.
        """
        # Compiled code reads as many values as there are gradients.
        for name, vector, dtype in (
            ("h", h, paddle.float32),
            ("discard", discard, paddle.bool),
        ):
            if vector is not None and (
                vector.shape != [self._size] or vector.dtype != dtype
            ):
                raise ValueError(
                    f"{name} is {vector.dtype} of shape {[*vector.shape]}: it "
                    f"must be {dtype} of shape {[self._size]}"
                )
        try:
            for part in self._parts:
                part.scale_(h, discard)
        except Exception as error:
            raise RuntimeError(HALF_CLIPPED) from error


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


HALF_CLIPPED = (
    "scaling the gradients failed: some may be clipped and others not. "
    "The clip's state is that before the step: call clear_grad() and "
    "compute the gradients again"
)


def _values(gradient: Tensor | None, adds_up: bool = False) -> Tensor | None:
    """View a sparse gradient's rows, or copy them with repeated ones added."""
    if gradient is None or not gradient.is_selected_rows():
        return gradient
    if adds_up:
        gradient = _C_ops.merge_selected_rows(gradient)
    return gradient._get_tensor_from_selected_rows()


NonFinite = Literal["zero", "raise", "propagate"]


def refuse_nonfinite(
    norm: Tensor, keys: Sequence[str], step: int, reducer: Reducer
) -> None:
    """Stop on all ranks if a norm is not finite; waits for the device.

    Without fleet (``paddle.DataParallel`` alone) nothing tells which ranks take
    part: only those raise that found it. After the all-reduce of gradients
    these are all.
    """
    mine = [keys[i] for i in np.flatnonzero(~np.isfinite(norm.numpy()))]
    found = reducer.gather_if_any(bool(mine), mine)
    places = []
    for key in dict.fromkeys(key for its_keys in found for key in its_keys):
        ranks = [str(rank) for rank, keys in enumerate(found) if key in keys]
        where = f" on rank {', '.join(ranks)}"
        if len(ranks) == len(found):
            where = " on all ranks" if len(found) > 1 else ""
        places.append(key + where)
    if places:
        raise FloatingPointError(
            f"the gradient of {len(places)} tensors is not finite at step "
            f"{step}: {'; '.join(places)}"
        )


def treat_nonfinite(
    nonfinite: NonFinite, h: Tensor, norm: Tensor, num_nonfinite: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Replace ``h`` where a norm is not finite, as ``nonfinite`` says.

    Returns ``h``, which gradients to discard (bool ``[num_tensors]``; None:
    none), and in how many steps each tensor was not finite.
    """
    if nonfinite == "raise":
        return h, None, num_nonfinite
    finite = paddle.isfinite(norm)
    discard = paddle.logical_not(finite)
    num_nonfinite = num_nonfinite + discard.astype("int32")
    if nonfinite == "propagate":
        h = paddle.where(finite, h, paddle.ones_like(h))
        return h, None, num_nonfinite
    h = paddle.where(finite, h, paddle.zeros_like(h))
    return h, discard, num_nonfinite
