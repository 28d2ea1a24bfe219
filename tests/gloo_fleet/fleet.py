# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What takes an accelerator for granted in fleet and auto-parallel.

Places in their code, and operators of tensor-parallel layers.
"""

from typing import Any

import paddle
from paddle import Tensor, _C_ops
from paddle import distributed as dist
from paddle.base import core
from paddle.distributed import parallel
from paddle.distributed.auto_parallel import api
from paddle.distributed.communication.group import Group, _GroupManager
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import (
    dygraph_sharding_optimizer,
)
from paddle.distributed.fleet.meta_parallel import tensor_parallel
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_storage,
)
from paddle.distributed.fleet.utils import (
    hybrid_parallel_util,
    tensor_fusion_helper,
)

_ALIGNMENT_BYTES = 256
_ShardingV2 = dygraph_sharding_optimizer.DygraphShardingOptimizerV2
_ParamStorage = group_sharded_storage.ParamStorage
_native_reshard = core.reshard
_native_clear_grad = _ShardingV2.clear_grad
_native_add_rank_params = _ParamStorage.add_rank_params


def broadcast_input_data(
    hcg: Any, *inputs: Any, **kwargs: Any
) -> tuple[Any, Any]:
    """Give every tensor-parallel rank the inputs of the group's first one."""
    place = paddle.CPUPlace()
    for data in (inputs, kwargs):
        if data:
            hybrid_parallel_util._broadcast_nested_data(hcg, "cpu", place, data)
    return inputs, kwargs


def clear_grad(self: Any, set_to_zero: bool = True) -> None:
    """Zero the gradients where they are, in the fused buffer.

    Paddle's own clears them so that the next backward puts a new tensor in
    their place, and the buffer that is reduced stays zero. By its source that
    is so on every device: prefer ``main_grad`` with V2.
    """
    if any(hasattr(p, "main_grad") for p in self._parameter_list):
        _native_clear_grad(self, set_to_zero)
        return
    with paddle.no_grad():
        for parameter in self._parameter_list:
            if parameter.grad is not None:
                parameter.grad.zero_()


def add_rank_params(
    self: Any, parameters: Any, param2align: Any, convert_gpu: bool = False
) -> None:
    """Copy the parameters into the fused buffer without leaving the CPU."""
    _native_add_rank_params(self, parameters, param2align, False)


def reshard(tensor: Tensor, dist_attr: Any) -> Tensor:
    """Reshard; ``Partial`` to ``Shard`` by an all-reduce and a slice."""
    split_axes = {
        axis for axes in dist_attr.multi_dims_mapping for axis in axes
    }
    placements = [
        dist.Replicate() if p.is_partial() and axis in split_axes else p
        for axis, p in enumerate(tensor.placements)
    ]
    if placements != tensor.placements:
        tensor = dist.reshard(tensor, tensor.process_mesh, placements)
    return _native_reshard(tensor, dist_attr)


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

    def c_softmax_with_cross_entropy(
        self, logits: Tensor, label: Tensor, ignored: int, ring_id: int, *_: Any
    ) -> tuple[Tensor, Tensor]:
        group = _GroupManager.group_map_by_id[ring_id]
        return softmax_with_cross_entropy(logits, label, ignored, group)


_FUSING = (tensor_fusion_helper, api)
_ALIGNMENT = {**tensor_fusion_helper.alignment, "cpu": _ALIGNMENT_BYTES}
PATCHES: dict[str, list[tuple[Any, str, Any]]] = {
    "sharding's fused buffers have no alignment for CPU": [
        (module, "alignment", _ALIGNMENT) for module in _FUSING
    ],
    "sharding's fused buffers do not know the CPU": [
        (module, "get_current_device_type", lambda: "cpu") for module in _FUSING
    ],
    "global norm of group_sharded_parallel, load_state_dict: take a GPU for "
    "granted": [(Tensor, "cuda", lambda self, *_, **__: self.detach().clone())],
    "refuses to broadcast on CPU": [
        (tensor_parallel, "broadcast_input_data", broadcast_input_data)
    ],
    "after clear_gradient the next backward leaves the fused buffer": [
        (_ShardingV2, "clear_grad", clear_grad)
    ],
    "empties the parameter whose CPU copy it takes, which is itself": [
        (_ParamStorage, "add_rank_params", add_rank_params)
    ],
    "PipelineLayer asks for a device number, which a CPU rank lacks": [
        (parallel.ParallelEnv, "device_id", property(lambda self: 0))
    ],
    "CReduceScatterOp has no CPU kernel": [(core, "reshard", reshard)],
    "c_* operators have no CPU kernel": [(mp_ops, "_C_ops", CpuOperators())],
}
