# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip communicates under layouts that ``tools/pretrain.py`` has not.

    python -m paddle.distributed.launch --nproc_per_node 2 \\
        other_layouts.py RESULT OUTPUT_DIR LAYOUT CLIP

trains a small decoder for a few steps and writes, as JSON, what the clip of
rank 0 communicated in its last warm-up step and in its last step.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed import fleet

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.files import atomic_write_json
from paddle_adagc.lab.benchmark.collectives_run import rows
from paddle_adagc.lab.benchmark.ledger import CommunicationLedger
from paddle_adagc.lab.gloo import enable
from paddle_adagc.lab.gloo.group_sharded import group_sharded_on_cpu
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.pipeline import DecoderForCausalLMPipe
from paddle_adagc.lab.models.rank_weights import spread_over_mesh
from paddle_adagc.lab.train.processes import leave

_MODEL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
_T_START = 2
_NUM_STEPS = 4
_BATCH, _LENGTH = 8, 16
_SEGMENT_SIZE = 100  # stage 3 leaves the norms whole

Step = Callable[[], None]
"""One optimizer step."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way to parallelise."""

    num_ranks: int
    prepare: Callable[[Any, CommunicationLedger], Step]
    """Starts the layout; takes the clip and who watches it."""

    has_global_gc: bool = False
    """GlobalGC's collectives can be counted: fleet's own clip makes them."""


def _of_fleet(
    num_ranks: int,
    degrees: dict[str, int],
    sharding: dict[str, bool] | None = None,
    virtual_stages: int = 1,
) -> Layout:
    """Prepare fleet.

    Args:
        num_ranks: Processes.
        degrees: Of ``hybrid_configs``.
        sharding: Options of ``sharding_configs``.
        virtual_stages: Parts of a pipeline stage.
    """

    def prepare(clip: Any, ledger: CommunicationLedger) -> Step:
        strategy = fleet.DistributedStrategy()
        strategy.hybrid_configs = {"dp_degree": 1, **degrees}
        for name, value in (sharding or {}).items():
            section = strategy.hybrid_configs["sharding_configs"]
            setattr(section, name, value)
        strategy.pipeline_configs = {
            "accumulate_steps": _BATCH,
            "micro_batch_size": 1,
        }
        fleet.init(is_collective=True, strategy=strategy, log_level="WARNING")
        is_pipe = degrees.get("pp_degree", 1) > 1
        config = DecoderConfig(
            **_MODEL,
            tie_word_embeddings=is_pipe,
            virtual_pp_degree=virtual_stages,
        )
        kind = DecoderForCausalLMPipe if is_pipe else DecoderForCausalLM
        model = kind(config)
        _bind(clip, model)
        inner = _optimizer(model, clip)
        optimizer = fleet.distributed_optimizer(inner)
        model = fleet.distributed_model(model)
        inner._grad_clip = ledger.watch(inner._grad_clip)
        if is_pipe:
            return lambda: model.train_batch([*_batch()], optimizer)
        return _step(model, optimizer)

    return Layout(num_ranks, prepare, has_global_gc=True)


def _group_sharded(stage: int) -> Callable[[Any, CommunicationLedger], Step]:
    def prepare(clip: Any, ledger: CommunicationLedger) -> Step:
        dist.init_parallel_env()
        model = DecoderForCausalLM(DecoderConfig(**_MODEL))
        inner = _optimizer(model, clip)
        model, optimizer = group_sharded_on_cpu(
            model, inner, stage, _SEGMENT_SIZE
        )
        _bind(clip, model)
        inner._grad_clip = ledger.watch(inner._grad_clip)
        return _step(model, optimizer)

    return prepare


def _auto(
    stage: type[Any] | None = None, **sizes: int
) -> Callable[[Any, CommunicationLedger], Step]:
    """Prepare auto-parallel.

    Args:
        stage: Such as ``dist.ShardingStage1``, over the dimension dp.
        **sizes: Of the mesh's dimensions, dp and mp.
    """

    def prepare(clip: Any, ledger: CommunicationLedger) -> Step:
        dist.init_parallel_env()
        ranks = np.arange(dist.get_world_size()).reshape([*sizes.values()])
        mesh = dist.ProcessMesh(ranks, dim_names=[*sizes])
        dist.auto_parallel.set_mesh(mesh)
        model = DecoderForCausalLM(DecoderConfig(**_MODEL))
        spread_over_mesh(model, mesh)
        _bind(clip, model)
        optimizer = dist.shard_optimizer(
            _optimizer(model, ledger.watch(clip)),
            None if stage is None else stage("dp", mesh),
        )
        rows_of_batch = [
            dist.Shard(0) if name == "dp" else dist.Replicate()
            for name in sizes
        ]
        inputs = [
            dist.shard_tensor(tensor, mesh, rows_of_batch)
            for tensor in _batch()
        ]
        return _step(model, optimizer, inputs)

    return prepare


WAYS = {
    "SEP2": _of_fleet(2, {"sep_degree": 2}),
    "PP4 x 2 virtual stages": _of_fleet(4, {"pp_degree": 4}, virtual_stages=2),
    "V1 x2 with tensor_fusion": _of_fleet(
        2,
        {"sharding_degree": 2},
        {"tensor_fusion": True, "fuse_optimizer": False},
    ),
    "V1 x2 with fuse_optimizer": _of_fleet(
        2,
        {"sharding_degree": 2},
        {"tensor_fusion": True, "fuse_optimizer": True},
    ),
    "group_sharded stage 2 x2": Layout(2, _group_sharded(2)),
    "group_sharded stage 3 x2": Layout(2, _group_sharded(3)),
    "auto DP2": Layout(2, _auto(dp=2)),
    "auto TP2": Layout(2, _auto(mp=2)),
    "auto TP2 x DP2": Layout(4, _auto(dp=2, mp=2)),
    "auto ShardingStage1 x2": Layout(2, _auto(dist.ShardingStage1, dp=2)),
    "auto TP2 x ShardingStage1": Layout(
        4, _auto(dist.ShardingStage1, dp=2, mp=2)
    ),
    "auto ShardingStage2 x2": Layout(2, _auto(dist.ShardingStage2, dp=2)),
}
"""By the name of the layout."""


def _optimizer(model: nn.Layer, clip: Any) -> Any:
    return paddle.optimizer.AdamW(
        1e-3, parameters=model.parameters(), grad_clip=clip
    )


def _bind(clip: Any, model: nn.Layer) -> None:
    if isinstance(clip, ClipGradByAdaGC):
        clip.bind(model)


def _batch() -> tuple[paddle.Tensor, paddle.Tensor]:
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, _MODEL["vocab_size"], [_BATCH, _LENGTH + 1])
    return paddle.to_tensor(tokens[:, :-1]), paddle.to_tensor(tokens[:, 1:])


def _step(model: nn.Layer, optimizer: Any, inputs: Any = None) -> Step:
    inputs = inputs or _batch()

    def step() -> None:
        model(*inputs)[0].backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def main() -> None:
    """Run the command."""
    result, _, layout, clip_name = sys.argv[1:]
    enable()
    paddle.seed(0)
    clip = (
        ClipGradByAdaGC(t_start=_T_START)
        if clip_name == "AdaGC"
        else nn.ClipGradByGlobalNorm(1.0)
    )
    ledger = CommunicationLedger()
    step = WAYS[layout].prepare(clip, ledger)
    for _ in range(_NUM_STEPS):
        step()
    if dist.get_rank() == 0:
        facts = {
            "warm_up": rows(ledger, _T_START - 1),
            "adaptive": rows(ledger, _NUM_STEPS - 1),
        }
        atomic_write_json(result, facts)


if __name__ == "__main__":
    main()
    leave(0)
