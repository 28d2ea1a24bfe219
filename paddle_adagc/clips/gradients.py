# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's two passes over the gradients: measure them, scale them.

Gradients may be float32, float64, bfloat16 or float16, dense or SelectedRows
(the gradient of a sparse embedding); norms are float32 whatever they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import paddle
from paddle import Tensor, _C_ops

from paddle_adagc.kernels import Segments, split
from paddle_adagc.kernels.cuda import DeviceTensors
from paddle_adagc.parallel.reduce import Reducer


class GradientList:
    """The gradients of one call, each with the first backend that can take it.

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
            of_units = self._segments
            size = of_units.num_slots if of_units else len(self._gradients)
            return paddle.zeros([size], dtype="float32")
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


def refuse_nonfinite(
    norm: Tensor, keys: Sequence[str], step: int, reducer: Reducer
) -> None:
    """Stop on all ranks, as ``"raise"`` asks; waits for the device.

    Without fleet (``paddle.DataParallel`` alone) nothing tells which ranks take
    part: only those raise that found it, and the others end with their next
    exchange. After the all-reduce of gradients these are all.

    Raises:
        FloatingPointError: A norm is not finite here or on another rank.
    """
    lost = [keys[i] for i in np.flatnonzero(~np.isfinite(norm.numpy()))]
    found = reducer.tell_everyone(bool(lost), lost)
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
