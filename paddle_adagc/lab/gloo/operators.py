# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Operators of fleet's tensor-parallel layers that have no CPU kernel."""

from typing import Any

import paddle
from paddle import Tensor, _C_ops
from paddle.autograd import PyLayer
from paddle.base import core
from paddle.distributed.communication.group import Group, _GroupManager
from paddle.distributed.fleet.layers.mpu import mp_ops


def _gather_columns(tensor: Tensor, group: Group) -> Tensor:
    parts = [paddle.empty_like(tensor) for _ in range(group.nranks)]
    group.process_group.all_gather(parts, tensor.contiguous(), True).wait()
    return paddle.concat(parts, axis=-1)


def _own_columns(tensor: Tensor, group: Group) -> Tensor:
    parts = paddle.split(tensor, group.nranks, axis=-1)
    return parts[group.rank].contiguous()


def _layer(there: Any, back: Any) -> type[PyLayer]:
    """Make a layer of a function and of the one that gradients go through."""

    class Layer(PyLayer):
        @staticmethod
        def forward(ctx: Any, tensor: Tensor, group: Group, *_: int) -> Tensor:
            ctx.group = group
            return there(tensor, group)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return back(grad, ctx.group)

    return Layer


ConcatColumns = _layer(_gather_columns, _own_columns)
"""[..., n] to [..., num_ranks * n]; the gradient keeps the rank's share."""

SplitColumns = _layer(_own_columns, _gather_columns)
"""[..., num_ranks * n] to the rank's [..., n]; gradients are gathered."""


def softmax_with_cross_entropy(
    logits: Tensor, label: Tensor, ignore_index: int, group: Group
) -> tuple[Tensor, Tensor]:
    """Softmax and cross entropy of logits whose classes the ranks share.

    Logits [..., n] and global labels [..., 1]. With z the logits of all ranks,
    the loss of a row with class y is log(sum_j exp(z_j - max z)) - (z_y - max
    z). Rows with ``ignore_index`` have loss and gradient zero. Computed in
    float32 at least.
    """
    num_classes, dtype = logits.shape[-1], logits.dtype
    wide = logits if dtype == paddle.float64 else logits.cast("float32")
    top = wide.detach().max(axis=-1, keepdim=True)
    if group.nranks > 1:
        group.process_group.all_reduce(top, core.ReduceOp.MAX, True).wait()
    shifted = wide - top
    exponential = shifted.exp()
    ignored = label == ignore_index
    index = label - group.rank * num_classes
    owned = (index >= 0) & (index < num_classes) & ~ignored
    index = paddle.where(owned, index, paddle.zeros_like(index))
    target = paddle.take_along_axis(shifted, index, axis=-1)
    total = exponential.sum(axis=-1, keepdim=True)
    sums = paddle.stack([total, target * owned.cast(target.dtype)])
    if group.nranks > 1:  # the gradient of each rank's part is that of the sum
        sums = mp_ops._mp_allreduce(sums, group=group)
    loss = sums[0].log() - sums[1]
    loss = paddle.where(ignored, paddle.zeros_like(loss), loss)
    softmax = (exponential / sums[0]).detach()
    return softmax.cast(dtype), loss.cast(dtype)


class CpuOperators:
    """``paddle._C_ops`` with the operators that CPU lacks filled in."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_C_ops, name)

    def c_identity(self, tensor: Tensor, *_: Any) -> Tensor:
        return tensor.clone()

    def c_concat(
        self, tensor: Tensor, rank: int, nranks: int, ring_id: int, *_: Any
    ) -> Tensor:
        group = _GroupManager.group_map_by_id[ring_id]
        return ConcatColumns.apply(tensor, group)

    def c_softmax_with_cross_entropy(
        self, logits: Tensor, label: Tensor, ignored: int, ring_id: int, *_: Any
    ) -> tuple[Tensor, Tensor]:
        group = _GroupManager.group_map_by_id[ring_id]
        return softmax_with_cross_entropy(logits, label, ignored, group)


PATCHES: dict[str, list[tuple[Any, str, Any]]] = {
    "c_* operators have no CPU kernel": [(mp_ops, "_C_ops", CpuOperators())],
    "no CPU kernel; its backward gathers rows where it split columns": [
        (mp_ops, "c_split_eager", SplitColumns)
    ],
}
