# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What clips communicate, counted on real processes layout by layout.

    python -m paddle.distributed.launch --nproc_per_node 2 \\
        collectives.py RESULT CONFIG [key=value ...]

trains a few steps and writes, as JSON, what the clip of rank 0 communicated in
its last warm-up step and in its last step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import paddle.distributed as dist
from paddlenlp.trainer import TrainerCallback
from paddlenlp.utils.log import logger
from tqdm import tqdm

from adagc_lab.benchmark.counts import (
    Collective,
    WatchedClip,
    count,
)
from adagc_lab.clips import make_clip
from adagc_lab.gloo import free_port
from adagc_lab.markdown import markdown_table
from adagc_lab.storage import atomic_write_json
from adagc_lab.train.config import ParallelConfig, RunConfig
from adagc_lab.train.parse import load_config
from adagc_lab.train.processes import leave, start_processes
from adagc_lab.train.run import build_trainer
from adagc_lab.train.tasks import make_task
from paddle_adagc.optimizer import innermost

_TOOLS = Path(__file__).resolve().parents[2]

LAYOUTS: dict[str, dict[str, Any]] = {
    "DP2": {"dp": 2},
    "TP2": {"tp": 2},
    "V1 x2": {"sharding": 2, "sharding_split_param": False},
    "V2 x2": {"sharding": 2},
    "TP2 x DP2": {"tp": 2, "dp": 2},
    "TP2 x V1": {"tp": 2, "sharding": 2, "sharding_split_param": False},
    "TP2 x V2": {"tp": 2, "sharding": 2},
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
_MOST_SIZES = 2


def record_communication(config: RunConfig) -> list[list[Collective]]:
    """Train as ``config`` says; return what the clip communicates, by step.

    Every process has to call it, and gets its own calls. Nothing is saved.
    """
    task, clip = make_task(config), make_clip(**config.clip)
    start_processes(config.parallel)
    watch = _Watch()
    trainer = build_trainer(config, task, clip)
    trainer.add_callback(watch)
    trainer.train()
    trainer.recorder.record.close()  # the next run may have the same folder
    return watch.clip.steps


class _Watch(TrainerCallback):
    """Watches the innermost optimizer's clip.

    Only when training begins: until then fleet may still replace the clip.
    """

    clip: WatchedClip

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        optimizer = innermost(kwargs["optimizer"])
        self.clip = optimizer._grad_clip = WatchedClip(optimizer._grad_clip)


def main() -> None:
    """Run one clip under one layout, as a process of that layout."""
    logger.set_level("WARNING")
    result, path, *overrides = sys.argv[1:]
    steps = record_communication(load_config(path, overrides))
    if dist.get_rank() == 0:
        facts = {
            "warm_up": count(steps[_T_START - 1]),
            "adaptive": count(steps[_NUM_STEPS - 1]),
        }
        atomic_write_json(result, facts)


def measure(config: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Run every clip under each of :data:`LAYOUTS` for a few steps.

    A row per layout and clip has ``layout``, ``clip``, and the calls of the
    last ``warm_up`` and ``adaptive`` step.
    """
    cells = [(name, clip) for name in LAYOUTS for clip in CLIPS]
    return [
        {"layout": name, "clip": clip, **_launch(str(config), name, clip)}
        for name, clip in tqdm(cells, unit="run")
    ]


def _launch(config: str, layout: str, clip: str) -> dict[str, Any]:
    parallel = LAYOUTS[layout]
    num_processes = ParallelConfig(**parallel).num_processes
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        command = [
            *(sys.executable, "-m", "paddle.distributed.launch"),
            *("--nproc_per_node", str(num_processes)),
            *("--master", f"127.0.0.1:{free_port()}"),
            *("--log_dir", f"{scratch}/log"),
            *(__file__, str(result), config, *_SETTINGS, *CLIPS[clip]),
            *(f"parallel.{key}={value}" for key, value in parallel.items()),
            f"train.output_dir={scratch}/run",
        ]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PADDLE_DISTRI_BACKEND": "gloo",
            "PYTHONPATH": f"{_TOOLS}:{os.environ.get('PYTHONPATH', '')}",
        }
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True
        )
        if done.returncode or not result.exists():
            raise RuntimeError(
                f"{' '.join(command)} failed:\n{done.stdout[-2000:]}"
                f"{done.stderr[-2000:]}"
            )
        return json.loads(result.read_text())


def to_markdown(rows: list[dict[str, Any]]) -> str:
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
            parts = [f"{number} {collective} of {size} B in all"]
        else:
            parts = [
                f"{call['calls']} {collective} of {call['bytes']} B"
                for call in same
            ]
        texts += [f"{part} over {group}" for part in parts]
    return ", ".join(texts) or "nothing"


if __name__ == "__main__":
    main()
    leave(0)
