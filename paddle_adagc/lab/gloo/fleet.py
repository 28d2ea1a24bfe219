# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Places in fleet and auto-parallel that take an accelerator for granted."""

from typing import Any

import paddle
from paddle import Tensor
from paddle import distributed as dist
from paddle.base import core
from paddle.distributed import parallel
from paddle.distributed.auto_parallel import api
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


def cuda(self: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return the tensor on "the GPU" of a rank that has none: a copy."""
    return self.detach().clone()


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


_FUSING = (tensor_fusion_helper, api)
_ALIGNMENT = {**tensor_fusion_helper.alignment, "cpu": _ALIGNMENT_BYTES}
PATCHES: dict[str, list[tuple[Any, str, Any]]] = {
    "sharding's fused buffers have no alignment for CPU": [
        (module, "alignment", _ALIGNMENT) for module in _FUSING
    ],
    "sharding's fused buffers do not know the CPU": [
        (module, "get_current_device_type", lambda: "cpu") for module in _FUSING
    ],
    "load_state_dict takes a GPU for granted": [(Tensor, "cuda", cuda)],
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
}
