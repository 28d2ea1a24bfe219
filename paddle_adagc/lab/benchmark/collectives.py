# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The table of what clips communicate, measured layout by layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paddle_adagc.lab.benchmark import collectives_run, other_layouts
from paddle_adagc.lab.gloo.rendezvous import free_port
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.train.config import ParallelConfig

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

OTHER_LAYOUTS = {
    name: way.num_ranks for name, way in other_layouts.WAYS.items()
}
"""Processes by the name of a layout that ``tools/pretrain.py`` has not."""

CLIPS: dict[str, list[str]] = {
    "GlobalGC": ["clip={name: global_norm}"],
    "AdaGC": ["clip={name: adagc, t_start: 2}"],
}
"""Fleet's own HybridParallelClipGrad, and AdaGC."""

_NUM_STEPS = 4
_MOST_SIZES = 2
_MOST_SECONDS = 600.0


def measure(
    config: str | os.PathLike[str], layouts: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Run every clip under every layout for a few steps.

    Args:
        config: Run config of the model.
        layouts: By name, the ``parallel`` section.

    Returns:
        Per layout and clip a row with ``layout``, ``clip``, and what
        :mod:`paddle_adagc.lab.benchmark.collectives_run` writes.

    Raises:
        RuntimeError: A run failed.
    """
    rows = []
    cells = [(name, clip) for name in layouts for clip in CLIPS]
    for name, clip in tqdm(cells, unit="run"):
        parallel = ParallelConfig(**layouts[name])
        overrides = [
            *CLIPS[clip],
            *(f"parallel.{key}={v}" for key, v in layouts[name].items()),
            f"train.max_steps={_NUM_STEPS}",
            "train.save_every=0",
            "train.visualdl=false",
            "train.batch_size=4",
            "train.gradient_accumulation_steps=2",
            "record={tensors: false, moments: false}",
        ]
        rows.append(
            {
                "layout": name,
                "clip": clip,
                **_launch(
                    str(collectives_run.__file__),
                    [str(config), *overrides],
                    parallel.num_processes,
                ),
            }
        )
    return rows


def measure_others(names: Sequence[str]) -> list[dict[str, Any]]:
    """Do the same for other layouts, with a small decoder.

    Args:
        names: Of :data:`OTHER_LAYOUTS`.

    Returns:
        Rows like those of :func:`measure`. GlobalGC is left out where Paddle
        sums inside of its operators.

    Raises:
        RuntimeError: A run failed.
    """
    cells = [
        (name, clip)
        for name in names
        for clip in CLIPS
        if clip == "AdaGC" or other_layouts.WAYS[name].has_global_gc
    ]
    return [
        {
            "layout": name,
            "clip": clip,
            **_launch(
                str(other_layouts.__file__), [name, clip], OTHER_LAYOUTS[name]
            ),
        }
        for name, clip in tqdm(cells, unit="run")
    ]


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
    if not calls:
        return "nothing"
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
    return ", ".join(texts)


def _launch(
    script: str, arguments: list[str], num_processes: int
) -> dict[str, Any]:
    """Run a script on real processes; it writes the file RESULT."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        command = [
            *(sys.executable, "-m", "paddle.distributed.launch"),
            *("--nproc_per_node", str(num_processes)),
            *("--master", f"127.0.0.1:{free_port()}"),
            *("--log_dir", f"{scratch}/log"),
            *(script, str(result), f"{scratch}/run"),
            *arguments,
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
