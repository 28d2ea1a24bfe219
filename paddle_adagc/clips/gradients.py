# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's two passes over the gradients: measure them, scale them.

Gradients may be float32, float64, bfloat16 or float16, dense or SelectedRows
(the gradient of a sparse embedding); norms are float32 whatever they are.
Nothing here waits for the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import paddle
from paddle import Tensor, _C_ops

from paddle_adagc.kernels import split


class GradientList:
    """The gradients of one call of a clip.

    Each gradient goes to the first backend of :mod:`paddle_adagc.kernels` that
    can take it.

    Args:
        gradients: One gradient per tensor, or None for a tensor that has none.
    """

    def __init__(self, gradients: Sequence[Tensor | None]) -> None:
        self._gradients = gradients
        self._has_rows = any(
            gradient is not None and gradient.is_selected_rows()
            for gradient in gradients
        )
        values = map(_stored, gradients) if self._has_rows else gradients
        self._parts = split(values)

    def squared_norms(self) -> Tensor:
        """Squared L2 norm of every gradient, as one vector on the device.

        Returns:
            float32 ``[num_tensors]``; 0 for None. Inf or NaN where the gradient
            holds one, Inf where the squared norm overflows float32 (a norm
            above 1.8e19).
        """
        parts = self._parts
        if self._has_rows:
            parts = split(map(_merged, self._gradients))
        if not parts:
            return paddle.zeros([len(self._gradients)], dtype="float32")
        total, *others = [part.squared_norms() for part in parts]
        for norms in others:  # each is 0 where it has no tensor
            total = _C_ops.add(total, norms)
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
        with changing_gradients():
            for part in self._parts:
                part.scale_(h, discard)


@contextlib.contextmanager
def changing_gradients() -> Iterator[None]:
    """Say what is left behind if changing gradients in place fails.

    Raises:
        RuntimeError: It failed; from the error that says why.
    """
    try:
        yield
    except Exception as error:
        raise RuntimeError(
            "scaling the gradients failed: some may be clipped and others not. "
            "The clip's state is that before the step: call clear_grad() and "
            "compute the gradients again"
        ) from error


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
