# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ways to lay a model over ranks: fleet, auto-parallel, group_sharded."""

import contextlib
import dataclasses
import re
from typing import Any
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.base import core
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import PipelineLayer
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2,
    group_sharded_stage2,
    group_sharded_stage3,
)

MICRO_BATCHES = 2
BATCH = 8
SEGMENT_SIZE = 100  # smaller tensors stay whole under stage 3


@dataclasses.dataclass(frozen=True)
class Layout:
    """Degrees and options of fleet; one process by default."""

    dp: int = 1
    mp: int = 1
    pp: int = 1
    sharding: int = 1
    ep: int = 1
    split_param: bool = False
    fusion: str = ""  # "tensors", or "optimizer": its buffers join tensors

    is_fleet = True
    binds_wrapper = False
    whole = staticmethod(paddle.Tensor.numpy)  # a tensor as an array

    @property
    def is_fused(self):
        """Whether the clip is given buffers that join tensors."""
        return self.fusion == "optimizer"

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.dp * self.mp * self.pp * self.sharding

    def start(self) -> Any:
        """Start fleet; return the topology."""
        strategy = fleet.DistributedStrategy()
        hybrid = {
            f"{name}_degree": getattr(self, name)
            for name in ("dp", "mp", "pp", "sharding")
        }
        if self.ep > 1:
            order = "sharding moe_sharding pp sep dp cp ep mp"
            hybrid |= {
                "ep_degree": self.ep,
                "moe_sharding_degree": self.mp * self.sharding // self.ep,
                "order": order.split(),
            }
        strategy.hybrid_configs = hybrid
        sharding = strategy.hybrid_configs["sharding_configs"]
        sharding.split_param = self.split_param
        sharding.tensor_fusion = bool(self.fusion)
        sharding.fuse_optimizer = self.is_fused
        strategy.pipeline_configs = {
            "accumulate_steps": MICRO_BATCHES,
            "micro_batch_size": BATCH // (self.dp * self.sharding),
        }
        strategy.find_unused_parameters = True
        fleet.init(is_collective=True, strategy=strategy)
        return fleet.get_hybrid_communicate_group()

    def spread(self, model):
        """Place the parameters before the clip is bound."""

    def wrap(self, model, optimizer):
        """Hand both to fleet, if it has started."""
        if self.world_size == 1:
            return model, optimizer
        return (
            fleet.distributed_model(model),
            fleet.distributed_optimizer(optimizer),
        )

    def rows(self, arrays, topology):
        """This rank's rows and positions of each micro-batch, as tensors."""
        rank, size = dist.get_rank(), self.dp
        if topology is not None:
            shards = topology.get_sharding_parallel_world_size()
            size = topology.get_data_parallel_world_size() * shards
            rank = topology.get_data_parallel_rank() * shards
            rank += topology.get_sharding_parallel_rank()
        return [
            paddle.to_tensor(np.split(array, size, axis=1)[rank])
            for array in arrays
        ]

    def backward(self, model, bare, optimizer, ids, labels):
        """Loss of all micro-batches, their gradients accumulated."""
        if isinstance(bare, PipelineLayer):
            data = model._prepare_training(
                [ids.flatten(0, 1), labels.flatten(0, 1)], optimizer, None
            )
            loss = model.forward_backward_pipeline(data, scaler=None).item()
            is_last = model.is_pipeline_last_stage()
            assert bool(bare.num_losses) == is_last
            bare.num_losses = 0
            return loss
        total = 0.0
        for micro in range(MICRO_BATCHES):
            is_last = micro + 1 == MICRO_BATCHES
            waits = isinstance(model, paddle.DataParallel) and not is_last
            with model.no_sync() if waits else contextlib.nullcontext():
                loss = model(ids[micro], labels[micro])[0]
                (loss / MICRO_BATCHES).backward()
            total += float(loss) / MICRO_BATCHES
        return total


def gradient_of(parameter):
    main_grad = getattr(parameter, "main_grad", None)
    return parameter.grad if main_grad is None else main_grad


STAGES = {1: dist.ShardingStage1, 2: dist.ShardingStage2}
SPLIT_AXES = {  # of tensor parallelism; norms and routers have none
    re.compile(r"\.(embed_tokens|o_proj|down_proj)\.weight$"): 0,
    re.compile(r"(\.[qkv]_proj|\.gate_proj|\.up_proj|lm_head)\.weight$"): 1,
}


@dataclasses.dataclass(frozen=True)
class MeshLayout(Layout):
    """A mesh of ``dp`` x ``mp`` processes, and the sharding stage over dp."""

    stage: int = 0
    is_fleet = False

    @property
    def mesh(self):
        """Of one dimension where the other has size 1."""
        sizes = {"dp": self.dp, "mp": self.mp}
        sizes = {name: size for name, size in sizes.items() if size > 1}
        ranks = np.arange(self.world_size).reshape(list(sizes.values()))
        return dist.ProcessMesh(ranks, dim_names=[*sizes])

    def start(self):
        """Let auto-parallel know the mesh."""
        dist.auto_parallel.set_mesh(self.mesh)

    def spread(self, model):
        """Replace parameters by distributed ones; ``"mp"`` splits matrices."""
        for prefix, layer in model.named_sublayers(include_self=True):
            for name, parameter in [*layer._parameters.items()]:
                if parameter is None:
                    continue
                key = f"{prefix}.{name}"
                axes = [SPLIT_AXES[p] for p in SPLIT_AXES if p.search(key)]
                split = {"mp": dist.Shard(axes[0])} if axes else {}
                placements = self.placements(**split)
                placed = dist.shard_tensor(parameter, self.mesh, placements)
                setattr(layer, name, placed)

    def placements(self, **by_dimension):
        """``Replicate`` on every dimension that is not named."""
        return [
            by_dimension.get(name, dist.Replicate())
            for name in self.mesh.dim_names
        ]

    def wrap(self, model, optimizer):
        stage = STAGES.get(self.stage)
        return model, dist.shard_optimizer(
            optimizer, stage and stage("dp", self.mesh)
        )

    def rows(self, arrays, topology):
        placements = self.placements(dp=dist.Shard(0))
        return [
            [
                dist.shard_tensor(paddle.to_tensor(x), self.mesh, placements)
                for x in array
            ]
            for array in arrays
        ]

    @staticmethod
    def whole(tensor):
        """A distributed tensor as one NumPy array."""
        mesh = tensor.process_mesh
        copies = [dist.Replicate() for _ in mesh.shape]
        tensor = dist.reshard(tensor.detach(), mesh, copies)
        return tensor._local_value().numpy()


@dataclasses.dataclass(frozen=True)
class GroupSharded(Layout):
    """Two ranks in ``group_sharded_parallel``'s wrapper of a stage."""

    dp: int = 2
    stage: int = 2
    is_fleet = False
    binds_wrapper = True

    def start(self):
        """Start fleet's data axis of all ranks, or nothing."""
        if self.stage == 2:
            fleet.init(is_collective=True)

    def wrap(self, model, optimizer):
        """Use the same classes as the function, which itself refuses CPUs."""
        place = {"group": dist.get_group(), "device": "cpu"}
        with (
            mock.patch.object(core, "is_compiled_with_cuda", return_value=True),
            mock.patch.object(paddle, "get_device", return_value="cpu:0"),
        ):
            if self.stage == 3:
                model = group_sharded_stage3.GroupShardedStage3(
                    model, optimizer, segment_size=SEGMENT_SIZE, **place
                )
                return model, optimizer
            stage_2 = group_sharded_optimizer_stage2.GroupShardedOptimizerStage2
            optimizer = stage_2(model.parameters(), optimizer, **place)
            model = group_sharded_stage2.GroupShardedStage2(
                model, optimizer, **place
            )
            return model, optimizer

    def backward(self, model, bare, optimizer, ids, labels):
        losses = [model(*rows)[0] for rows in zip(ids, labels, strict=True)]
        loss = sum(losses) / len(losses)
        loss.backward()
        return float(loss)


DENSE = {"qk_norm": True, "tie_word_embeddings": True}
MOE = {"moe_num_experts": 4}
# So many experts that some get no token on a rank, or on any.
SPARSE_MOE = {"moe_num_experts": 16, "moe_top_k": 1}
# Stage 3 has no weights for a layer that uses another's.
UNTIED = {"qk_norm": True}
V2 = {"split_param": True}
MAIN_GRAD = {**DENSE, "main_grad": True}
BOTH = (DENSE, MOE)
MOES = (MOE, SPARSE_MOE, {**MOE, "main_grad": True})
CASES = {
    "tp2": (Layout(mp=2), *BOTH),
    "pp2": (Layout(pp=2), *BOTH),  # three layers: uneven stages
    "dp2": (Layout(dp=2), *BOTH, SPARSE_MOE),
    "v1 x2": (Layout(sharding=2), *BOTH),
    "v1 x2 with tensor_fusion": (
        Layout(sharding=2, fusion="tensors"),
        DENSE,
    ),
    "v1 x2 with fuse_optimizer": (
        Layout(sharding=2, fusion="optimizer"),
        *BOTH,
        MAIN_GRAD,
    ),
    "v2 x2": (Layout(sharding=2, **V2), MOE, MAIN_GRAD),
    "tp2 x dp2": (Layout(mp=2, dp=2), *BOTH),
    "tp2 x pp2": (Layout(mp=2, pp=2), *BOTH),
    "tp2 x v1": (Layout(mp=2, sharding=2), *BOTH),
    "tp2 x v2": (Layout(mp=2, sharding=2, **V2), *BOTH, MAIN_GRAD),
    "pp2 x v2": (Layout(pp=2, sharding=2, **V2), *BOTH),
    "ep2": (Layout(ep=2, sharding=2, **V2), MOE, SPARSE_MOE),
    "ep2 x v2 x4": (Layout(ep=2, sharding=4, **V2), *MOES),
    "tp2 x ep2": (Layout(mp=2, ep=2), MOE, SPARSE_MOE),
    "tp2 x ep2 x v2": (Layout(mp=2, ep=2, sharding=2, **V2), *MOES),
    "pp2 x ep2": (Layout(pp=2, ep=2, sharding=2, **V2), MOE),
    # Eight ranks.
    "tp2 x pp2 x v2": (Layout(mp=2, pp=2, sharding=2, **V2), *BOTH),
    "tp2 x pp2 x ep2 x v2": (Layout(mp=2, pp=2, ep=2, sharding=2, **V2), MOE),
    # Auto-parallel.
    "mesh tp2": (MeshLayout(mp=2), DENSE),
    "mesh dp2": (MeshLayout(dp=2), DENSE),
    "mesh stage 1 x2": (MeshLayout(dp=2, stage=1), DENSE),
    "mesh stage 2 x2": (MeshLayout(dp=2, stage=2), DENSE),
    "mesh tp2 x dp2": (MeshLayout(mp=2, dp=2), DENSE),
    "mesh tp2 x stage 1": (MeshLayout(mp=2, dp=2, stage=1), DENSE),
    # ``group_sharded_parallel``.
    "group_sharded stage 2": (GroupSharded(stage=2), UNTIED),
    "group_sharded stage 3": (GroupSharded(stage=3), UNTIED),
}
"""Name -> layout, and the models that it trains."""
