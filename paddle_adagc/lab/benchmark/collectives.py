# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What clips communicate, counted on real processes layout by layout.

    python -m paddle.distributed.launch --nproc_per_node 2 \\
        collectives.py RESULT OUTPUT_DIR CONFIG LAYOUT CLIP

trains a few steps and writes, as JSON, what the clip of rank 0 communicated in
its last warm-up step and in its last step. Under a layout that
``tools/pretrain.py`` has not it trains a small decoder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed import fleet
from paddlenlp.trainer import TrainerCallback
from paddlenlp.utils.log import logger
from tqdm import tqdm

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.measured import MeasuredClip
from paddle_adagc.files import atomic_write_json
from paddle_adagc.integrations.trainer import innermost
from paddle_adagc.lab.benchmark.counts import CommunicationLedger
from paddle_adagc.lab.gloo import enable
from paddle_adagc.lab.gloo.group_sharded import group_sharded_on_cpu
from paddle_adagc.lab.gloo.rendezvous import free_port
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.pipeline import DecoderForCausalLMPipe
from paddle_adagc.lab.models.rank_weights import spread_over_mesh
from paddle_adagc.lab.train.config import ParallelConfig, RunConfig
from paddle_adagc.lab.train.parse import load_config
from paddle_adagc.lab.train.processes import leave, start_processes
from paddle_adagc.lab.train.run import build_trainer

LAYOUTS: dict[str, dict[str, Any]] = {
    "DP2": {"dp": 2},
    "TP2": {"tp": 2},
    "SP with TP2": {"tp": 2, "sequence_parallel": True},
    "PP2": {"pp": 2},
    "V1 x2": {"sharding": 2, "sharding_split_param": False},
    "V2 x2": {"sharding": 2},
    "TP2 x DP2": {"tp": 2, "dp": 2},
    "TP2 x PP2": {"tp": 2, "pp": 2},
    "TP2 x V1": {"tp": 2, "sharding": 2, "sharding_split_param": False},
    "TP2 x V2": {"tp": 2, "sharding": 2},
    "PP2 x V2": {"pp": 2, "sharding": 2},
    "EP2": {"ep": 2, "sharding": 2},
    "EP2 x V2 x4": {"ep": 2, "sharding": 4},
    "TP2 x EP2 x V2": {"tp": 2, "ep": 2, "sharding": 2},
}
"""``parallel`` sections of the layouts, by name."""

_T_START = 2
_NUM_STEPS = 4
CLIPS: dict[str, list[str]] = {
    "GlobalGC": ["clip={name: global_norm}"],
    "AdaGC": [f"clip={{name: adagc, t_start: {_T_START}}}"],
}
"""Fleet's own HybridParallelClipGrad, and AdaGC."""

_SETTINGS = (
    f"train.max_steps={_NUM_STEPS}",
    "train.save_every=0",
    "train.visualdl=false",
    "train.batch_size=4",
    "train.gradient_accumulation_steps=2",
    "record={tensors: false, moments: false}",
)
_MODEL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
_BATCH, _LENGTH = 8, 16
_SEGMENT_SIZE = 100  # stage 3 leaves the norms whole
_MOST_SIZES = 2
_MOST_SECONDS = 600.0

Step = Callable[[], None]
"""One optimizer step."""

Prepare = Callable[[Any, CommunicationLedger], Step]
"""Starts a layout; takes the clip and who watches it."""


@dataclasses.dataclass(frozen=True)
class OtherLayout:
    """One way to parallelise that ``tools/pretrain.py`` has not."""

    num_ranks: int
    prepare: Prepare
    has_global_gc: bool = False
    """GlobalGC's collectives can be counted: fleet's own clip makes them."""


def _of_fleet(
    num_ranks: int,
    sharding: dict[str, bool] | None = None,
    virtual_stages: int = 1,
    **degrees: int,
) -> OtherLayout:
    """Fleet with these options of ``sharding_configs`` and degrees."""

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
        is_pipe = "pp_degree" in degrees
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
        return _step(model, optimizer, _batch())

    return OtherLayout(num_ranks, prepare, has_global_gc=True)


def _group_sharded(stage: int) -> OtherLayout:
    def prepare(clip: Any, ledger: CommunicationLedger) -> Step:
        dist.init_parallel_env()
        model = DecoderForCausalLM(DecoderConfig(**_MODEL))
        inner = _optimizer(model, clip)
        model, optimizer = group_sharded_on_cpu(
            model, inner, stage, _SEGMENT_SIZE
        )
        _bind(clip, model)
        inner._grad_clip = ledger.watch(inner._grad_clip)
        return _step(model, optimizer, _batch())

    return OtherLayout(2, prepare)


def _auto(stage: type[Any] | None = None, **sizes: int) -> OtherLayout:
    """Auto-parallel on a mesh of dp and mp; a sharding stage is over dp."""

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
        rows = [
            dist.Shard(0) if name == "dp" else dist.Replicate()
            for name in sizes
        ]
        inputs = [dist.shard_tensor(x, mesh, rows) for x in _batch()]
        return _step(model, optimizer, inputs)

    return OtherLayout(int(np.prod([*sizes.values()])), prepare)


_FUSED = {"tensor_fusion": True, "fuse_optimizer": False}
OTHER_LAYOUTS = {
    "SEP2": _of_fleet(2, sep_degree=2),
    "PP4 x 2 virtual stages": _of_fleet(4, virtual_stages=2, pp_degree=4),
    "V1 x2 with tensor_fusion": _of_fleet(2, _FUSED, sharding_degree=2),
    "V1 x2 with fuse_optimizer": _of_fleet(
        2, {**_FUSED, "fuse_optimizer": True}, sharding_degree=2
    ),
    "group_sharded stage 2 x2": _group_sharded(2),
    "group_sharded stage 3 x2": _group_sharded(3),
    "auto DP2": _auto(dp=2),
    "auto TP2": _auto(mp=2),
    "auto TP2 x DP2": _auto(dp=2, mp=2),
    "auto ShardingStage1 x2": _auto(dist.ShardingStage1, dp=2),
    "auto TP2 x ShardingStage1": _auto(dist.ShardingStage1, dp=2, mp=2),
    "auto ShardingStage2 x2": _auto(dist.ShardingStage2, dp=2),
}
"""By name."""


def _optimizer(model: nn.Layer, clip: Any) -> Any:
    return paddle.optimizer.AdamW(
        1e-3, parameters=model.parameters(), grad_clip=clip
    )


def _bind(clip: Any, model: nn.Layer) -> None:
    if isinstance(clip, ClipGradByAdaGC):
        clip.bind(model)


def _batch() -> list[paddle.Tensor]:
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, _MODEL["vocab_size"], [_BATCH, _LENGTH + 1])
    return [paddle.to_tensor(tokens[:, :-1]), paddle.to_tensor(tokens[:, 1:])]


def _step(model: nn.Layer, optimizer: Any, inputs: list[Any]) -> Step:
    def step() -> None:
        model(*inputs)[0].backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def record_communication(config: RunConfig) -> CommunicationLedger:
    """Train as ``config`` says, and record what the clip communicates.

    Every process has to call it, and gets its own ledger. Nothing is saved.
    """
    start_processes(config)
    ledger = CommunicationLedger()
    trainer = build_trainer(config)
    trainer.add_callback(_Watch(ledger))
    trainer.train()
    return ledger


class _Watch(TrainerCallback):
    """Records what the innermost optimizer's clip communicates.

    Only when training begins: until then fleet may still replace the clip.
    """

    def __init__(self, ledger: CommunicationLedger) -> None:
        self._ledger = ledger

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        optimizer = innermost(kwargs["optimizer"])
        clip = optimizer._grad_clip
        if isinstance(clip, MeasuredClip):  # what it measures is not the clip's
            clip.clip = self._ledger.watch(clip.clip)
        else:
            optimizer._grad_clip = self._ledger.watch(clip)


def _record_other(layout: str, clip_name: str) -> CommunicationLedger:
    """Train a small decoder under one of the other layouts."""
    enable()
    paddle.seed(0)
    clip = (
        ClipGradByAdaGC(t_start=_T_START)
        if clip_name == "AdaGC"
        else nn.ClipGradByGlobalNorm(1.0)
    )
    ledger = CommunicationLedger()
    step = OTHER_LAYOUTS[layout].prepare(clip, ledger)
    for _ in range(_NUM_STEPS):
        step()
    return ledger


def main() -> None:
    """Run one clip under one layout, as a process of that layout."""
    logger.set_level("WARNING")
    result, output_dir, path, layout, clip = sys.argv[1:]
    if layout in LAYOUTS:
        parallel = [f"parallel.{k}={v}" for k, v in LAYOUTS[layout].items()]
        folder = f"train.output_dir={output_dir}"
        overrides = [*CLIPS[clip], *parallel, *_SETTINGS, folder]
        ledger = record_communication(load_config(path, overrides))
    else:
        ledger = _record_other(layout, clip)
    if dist.get_rank() == 0:
        facts = {
            "warm_up": ledger.collectives(_T_START - 1),
            "adaptive": ledger.collectives(_NUM_STEPS - 1),
        }
        atomic_write_json(result, facts)


def measure(
    config: str | os.PathLike[str], names: Iterable[str]
) -> list[dict[str, Any]]:
    """Run every clip under every layout for a few steps.

    Args:
        config: Run config of the model; other layouts have a small decoder.
        names: Of :data:`LAYOUTS` and :data:`OTHER_LAYOUTS`.

    Returns:
        A row per layout and clip: ``layout``, ``clip``, and calls of the last
        ``warm_up`` and ``adaptive`` step. GlobalGC is left out where Paddle
        sums inside of its operators.

    Raises:
        RuntimeError: A run failed.
    """
    cells = [
        (name, clip)
        for name in names
        for clip in CLIPS
        if clip == "AdaGC"
        or name in LAYOUTS
        or OTHER_LAYOUTS[name].has_global_gc
    ]
    return [
        {"layout": name, "clip": clip, **_launch(str(config), name, clip)}
        for name, clip in tqdm(cells, unit="run")
    ]


def _launch(config: str, layout: str, clip: str) -> dict[str, Any]:
    """Run this file on real processes; it writes the file RESULT."""
    if layout in LAYOUTS:
        num_processes = ParallelConfig(**LAYOUTS[layout]).num_processes
    else:
        num_processes = OTHER_LAYOUTS[layout].num_ranks
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        command = [
            *(sys.executable, "-m", "paddle.distributed.launch"),
            *("--nproc_per_node", str(num_processes)),
            *("--master", f"127.0.0.1:{free_port()}"),
            *("--log_dir", f"{scratch}/log"),
            *(__file__, str(result), f"{scratch}/run", config, layout, clip),
        ]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PADDLE_DISTRI_BACKEND": "gloo",
        }
        try:
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_MOST_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"{' '.join(command)} was not done after {_MOST_SECONDS:.0f} s"
            ) from None
        if done.returncode or not result.exists():
            raise RuntimeError(
                f"{' '.join(command)} failed:\n{done.stdout[-2000:]}"
                f"{done.stderr[-2000:]}"
            )
        return json.loads(result.read_text())


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """Pipe table: what rank 0 passes to collectives in one clip step."""
    return markdown_table(
        ["layout", "clip", "warm-up step", "adaptive step"],
        [
            (
                row["layout"],
                row["clip"],
                "" if row["clip"] == "GlobalGC" else _cell(row["warm_up"]),
                _cell(row["adaptive"]),
            )
            for row in rows
        ],
        left=4,
    )


def _cell(calls: list[dict[str, Any]]) -> str:
    """Describe a step; collectives of many sizes come with their sum."""
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for call in calls:
        kinds.setdefault((call["collective"], call["group"]), []).append(call)
    texts = []
    for (collective, group), same in kinds.items():
        if len(same) > _MOST_SIZES:
            number = sum(call["calls"] for call in same)
            size = sum(call["calls"] * call["bytes"] for call in same)
            texts.append(
                f"{number} {collective} of {size} B in all over {group}"
            )
            continue
        texts += [
            f"{call['calls']} {collective} of {call['bytes']} B over {group}"
            for call in same
        ]
    return ", ".join(texts) or "nothing"


if __name__ == "__main__":
    main()
    leave(0)
