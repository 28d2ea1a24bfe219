# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's two passes over the gradients: measure them, scale them.

Gradients may be float32, float64, bfloat16 or float16, dense or SelectedRows
(the gradient of a sparse embedding); norms are float32 whatever they are. Only
the treatment ``"raise"`` of Inf and NaN waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import paddle
from paddle import Tensor, _C_ops

from paddle_adagc.kernels import Segments, split
from paddle_adagc.kernels.cuda.tensors import DeviceTensors
from paddle_adagc.parallel.reduce import Reducer


class GradientList:
    """The gradients of one call of a clip.

    Each gradient goes to the first backend of :mod:`paddle_adagc.kernels` that
    can take it.

    Args:
        gradients: One gradient per tensor, or None for a tensor that has none.
        segments: The units in them, with a slot each; None: each is one.
        descriptors: Of dense gradients, where they were read already, by
            :class:`paddle_adagc.kernels.pairs.PairReader`.
    """

    def __init__(
        self,
        gradients: Sequence[Tensor | None],
        segments: Segments | None = None,
        descriptors: np.ndarray | None = None,
    ) -> None:
        self._gradients = gradients
        self._segments = segments
        self._has_rows = descriptors is None and any(
            gradient is not None and gradient.is_selected_rows()
            for gradient in gradients
        )
        values = map(_stored, gradients) if self._has_rows else gradients
        self._parts = split(values, segments, descriptors)
        for part in self._parts if descriptors is not None else ():
            part.is_told = True

    @property
    def is_on_gpu(self) -> bool:
        """Whether the CUDA kernels have some of the gradients."""
        return DeviceTensors in map(type, self._parts)

    def squared_norms(self) -> Tensor:
        """Squared L2 norm of every gradient, as one vector on the device.

        Returns:
            float32 ``[num_tensors]``; 0 for None. Inf or NaN where the gradient
            holds one, Inf where the squared norm overflows float32 (a norm
            above 1.8e19).
        """
        parts = self._parts
        if self._has_rows:
            parts = split(map(_merged, self._gradients), self._segments)
        if not parts:
            num_slots = len(self._gradients)
            if self._segments is not None:
                num_slots = self._segments.num_slots
            return paddle.zeros([num_slots], dtype="float32")
        total = parts[0].squared_norms()
        for part in parts[1:]:  # each is 0 where it has no tensor
            total = _C_ops.add(total, part.squared_norms())
        return total

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply every gradient by its entry of ``h``, in place.

        Low-precision values are scaled in float32 and rounded once. The kernels
        neither read nor write a gradient whose ``h`` is 1.

        Args:
            h: float32 ``[num_tensors]``.
            discard: bool ``[num_tensors]``; where true the gradient becomes 0,
                which a multiplication cannot do to Inf and NaN. None: nowhere.
        """
        try:
            for part in self._parts:
                part.scale_(h, discard)
        except Exception as error:
            raise RuntimeError(HALF_CLIPPED) from error


HALF_CLIPPED = (
    "scaling the gradients failed: some may be clipped and others not. "
    "The clip's state is that before the step: call clear_grad() and "
    "compute the gradients again"
)


def squared_norms(tensors: Sequence[Tensor | None]) -> Tensor:
    """Short for ``GradientList(tensors).squared_norms()``."""
    return GradientList(tensors).squared_norms()


def _stored(gradient: Tensor | None) -> Tensor | None:
    """View of the numbers: of the stored rows, if the gradient is sparse."""
    if gradient is None or not gradient.is_selected_rows():
        return gradient
    return gradient._get_tensor_from_selected_rows()


def _merged(gradient: Tensor | None) -> Tensor | None:
    """Return the numbers; rows that a sparse gradient repeats are added."""
    if gradient is None or not gradient.is_selected_rows():
        return gradient
    return _stored(_C_ops.merge_selected_rows(gradient))


NonFinite = Literal["zero", "raise", "propagate"]


class NonFiniteTreatment:
    """Change the factors of tensors without a finite norm, and count them.

    Args:
        mode: ``"zero"``, ``"raise"`` or ``"propagate"``.

    Raises:
        ValueError: ``mode`` is none of these.
    """

    def __init__(self, mode: NonFinite) -> None:
        if mode not in get_args(NonFinite):
            raise ValueError(
                f"nonfinite={mode!r} is not one of {get_args(NonFinite)}"
            )
        self._mode = mode
        self._count = paddle.zeros([0], "int32")  # [num_tensors]

    def refuse(
        self, norm: Tensor, keys: Sequence[str], step: int, reducer: Reducer
    ) -> None:
        """Stop on all ranks, as ``"raise"`` asks; waits for the device.

        Without fleet (``paddle.DataParallel`` alone) nothing tells which ranks
        take part: only those raise that found it, and the others end with
        their next exchange. After the all-reduce of gradients these are all.

        Args:
            norm: float32 ``[num_tensors]``.
            keys: Key of every tensor.
            step: Index of the optimizer step.
            reducer: Tells the other ranks.

        Raises:
            FloatingPointError: A norm is not finite here or on another rank.
        """
        lost = [keys[i] for i in np.flatnonzero(~np.isfinite(norm.numpy()))]
        found = reducer.tell_everyone(bool(lost), lost)
        names: dict[str, list[str]] = {}
        for rank, its_names in enumerate(found):
            for name in its_names:
                names.setdefault(name, []).append(str(rank))
        if names:
            where = [
                name
                if len(found) == 1
                else f"{name} on all ranks"
                if len(ranks) == len(found)
                else f"{name} on rank {', '.join(ranks)}"
                for name, ranks in names.items()
            ]
            raise FloatingPointError(
                f"the gradient of {len(names)} tensors is not finite at step "
                f"{step}: {'; '.join(where)}"
            )

    def treat(self, h: Tensor, norm: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return factors, and which gradients become 0 (None: none can).

        Args:
            h: float32 ``[num_tensors]``.
            norm: float32 ``[num_tensors]``.
        """
        if self._mode == "raise":
            return h, None
        finite = paddle.isfinite(norm)
        lost = paddle.logical_not(finite)
        self._count = self.count(h.shape[0]) + lost.astype("int32")
        if self._mode == "propagate":
            return paddle.where(finite, h, paddle.ones_like(h)), None
        return paddle.where(finite, h, paddle.zeros_like(h)), lost

    def count(self, num_tensors: int) -> Tensor:
        """Return how often each tensor was lost, int32 ``[num_tensors]``."""
        num_new = num_tensors - self._count.shape[0]
        if num_new <= 0:
            return self._count
        return paddle.concat([self._count, paddle.zeros([num_new], "int32")])

    def reorder(self, old: Sequence[int]) -> None:
        """Follow a table that was bound: ``old`` holds the former slots."""
        count = self.count(max(old, default=-1) + 1)
        self._count = paddle.gather(count, paddle.to_tensor(old, "int64"))

    def update(self, count: Tensor) -> None:
        """Take over a count that a fused kernel made."""
        self._count = count
