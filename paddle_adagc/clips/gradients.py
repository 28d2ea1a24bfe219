# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""A clip's two passes over the gradients: measure them, scale them.

Gradients may be float32, float64, bfloat16 or float16, dense or SelectedRows
(the gradient of a sparse embedding); norms are float32 whatever they are.
Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle
from paddle import Tensor, _C_ops

from paddle_adagc.kernels.host import HostTensors


class GradientList:
    """The gradients of one call of a clip.

    On a CPU, dense float32 gradients go through compiled loops
    (:mod:`paddle_adagc.kernels`) that take all of them at once and leave those
    alone whose ``h`` is 1; anything else through Paddle's operators.

    Args:
        gradients: One gradient per tensor, or None for a tensor that has none.
    """

    def __init__(self, gradients: Sequence[Tensor | None]) -> None:
        self._gradients = gradients
        self._host = (
            HostTensors(gradients) if HostTensors.can_take(gradients) else None
        )

    def squared_norms(self) -> Tensor:
        """Squared L2 norm of every gradient, as one vector on the device.

        Returns:
            float32 ``[num_tensors]``; 0 for None. Inf or NaN where the gradient
            holds one, Inf where the squared norm overflows float32 (a norm
            above 1.8e19).
        """
        if not self._gradients:
            return paddle.zeros([0], dtype="float32")
        if self._host is not None:
            return self._host.squared_norms()
        nothing = paddle.zeros([1], dtype="float32")
        norms = [nothing if g is None else _norm(g) for g in self._gradients]
        return _C_ops.concat(norms, 0)

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply every gradient by its entry of ``h``, in place.

        Low-precision values are scaled in float32 and rounded once.

        Args:
            h: float32 ``[num_tensors]``.
            discard: bool ``[num_tensors]``; where true the gradient becomes 0,
                which a multiplication cannot do to Inf and NaN. None: nowhere.
        """
        if not self._gradients:
            return
        if self._host is not None:
            self._host.scale_(h, discard)
            return
        count = len(self._gradients)
        factors = _C_ops.split_with_num(h, count, 0)
        flags = [None] * count
        if discard is not None:
            flags = _C_ops.split_with_num(discard, count, 0)
        zero_where_ = _ZeroWhere()
        for gradient, factor, flag in zip(
            self._gradients, factors, flags, strict=True
        ):
            if gradient is not None:
                _scale_(gradient, factor, flag, zero_where_)


def squared_norms(tensors: Sequence[Tensor | None]) -> Tensor:
    """Short for ``GradientList(tensors).squared_norms()``."""
    return GradientList(tensors).squared_norms()


def _scale_(
    gradient: Tensor,
    factor: Tensor,
    flag: Tensor | None,
    zero_where_: _ZeroWhere,
) -> None:
    values = _values(gradient)
    wide = dense_float(values)
    if flag is not None:
        zero_where_(wide, flag)
    if wide.dtype != factor.dtype:
        factor = factor.astype(wide.dtype)
    _C_ops.multiply_(wide, factor if wide.ndim else factor.reshape([]))
    if wide is not values:
        _C_ops.assign_out_(wide.astype(values.dtype), values)


def dense_float(values: Tensor) -> Tensor:
    """The values in float32 or float64, one after the other in memory.

    A gradient may be strided: that of a weight used as ``matmul(x, w.T)`` is.
    Not every operator of Paddle takes such a tensor.

    Returns:
        The tensor itself if it is like that already, else a copy.
    """
    if values.dtype not in (paddle.float32, paddle.float64):
        values = values.astype("float32")
    # Tensor.contiguous() would move the tensor itself out of its memory.
    return values if values.is_contiguous() else _C_ops.assign(values)


def _norm(gradient: Tensor) -> Tensor:
    if gradient.is_selected_rows():
        merged = _C_ops.merge_selected_rows(gradient)
        gradient = merged._get_tensor_from_selected_rows()
    if gradient.dtype == paddle.float64:
        return _C_ops.squared_l2_norm(gradient).astype("float32")
    if gradient.dtype != paddle.float32:
        gradient = gradient.astype("float32")
    return _C_ops.squared_l2_norm(gradient)


def _values(gradient: Tensor) -> Tensor:
    """View of the numbers: of the stored rows, if the gradient is sparse."""
    if gradient.is_selected_rows():
        return gradient._get_tensor_from_selected_rows()
    return gradient


class _ZeroWhere:
    """Set a tensor to 0 if a flag on the device is true.

    The loss scaler's own operator: it looks at the flag on the device, and
    touches the values only if it is set. Its loss scale and its step counters
    are of no use here.
    """

    def __init__(self) -> None:
        self._loss_scale = paddle.ones([1], dtype="float32")
        self._good, self._bad = paddle.zeros([2, 1], dtype="int32").unbind()

    def __call__(self, values: Tensor, flag: Tensor) -> None:
        _C_ops.update_loss_scaling_(
            [values],
            flag,
            self._loss_scale,
            self._good,
            self._bad,
            1,
            1,
            1,
            1,
            True,
        )
