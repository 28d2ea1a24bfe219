# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Modelled time of a clip's all-reduces, beside the paper's GPU hours.

An alpha-beta model of the faster of rings and trees (Thakur et al. 2005), with
NCCL's own latencies for its low-latency protocol (``baseLat`` and ``hwLat`` of
``src/graph/tuning.cc`` in NCCL 2.19) and the bandwidths of data sheets: NVLink
4 of an H100, one 400 Gbit/s InfiniBand adapter per GPU. Nothing was measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Sequence

from adagc_lab.markdown import markdown_table
from adagc_lab.report.differences import fixed

GPUS_PER_NODE = 8
LAUNCH_US = 6.6  # of an all-reduce before its first message
NVLINK_US, IB_RING_US, IB_TREE_US = 0.6, 2.7, 5.0  # of a message
NVLINK_GB_PER_S, IB_GB_PER_S = 450.0, 50.0  # of a GPU, one direction
WARM_UP_STEPS = 100
_US_PER_HOUR = 3.6e9

Call = tuple[Collection[int], int]
"""Ranks of an all-reduce, and its bytes."""


def all_reduce_us(ranks: Collection[int], num_bytes: int) -> tuple[float, ...]:
    """Microseconds of an all-reduce as a ring and as a tree.

    With p ranks on k nodes, at most m on each: a ring passes 2 (p - 1)
    messages, 2 (k - 1) of them between nodes, and moves 2 (p - 1) / p of the
    bytes; a tree passes 2 (m - 1) messages inside of a node and 2 log2(k)
    between nodes, and moves the bytes twice. The slowest link sets the
    bandwidth.
    """
    size = len(ranks)
    on_node = Counter(rank // GPUS_PER_NODE for rank in ranks)
    nodes = len(on_node)
    gb_per_s = IB_GB_PER_S if nodes > 1 else NVLINK_GB_PER_S
    bytes_us = num_bytes / (gb_per_s * 1e3)
    ring = 2 * (size - nodes) * NVLINK_US + 2 * (nodes - 1) * IB_RING_US
    ring += 2 * (size - 1) / size * bytes_us
    tree = 2 * (max(on_node.values()) - 1) * NVLINK_US
    tree += 2 * math.ceil(math.log2(nodes)) * IB_TREE_US + 2 * bytes_us
    return LAUNCH_US + ring, LAUNCH_US + tree


def step_us(calls: Sequence[Call]) -> float:
    """Microseconds of a step's calls, all as rings or all as trees."""
    times = [all_reduce_us(*call) for call in calls]
    return min(map(sum, zip(*times, strict=True)), default=0.0)


@dataclasses.dataclass(frozen=True)
class PaperRun:
    """A column of the paper's table of GPU hours (tab:energy_consumption).

    ``tensors``, ``split_tensors`` (by tensor parallelism) and ``experts`` are
    those of a rank; ERNIE's, of the pipeline stage that communicates longest.
    """

    model: str
    preset: str  # of adagc_lab.models.families.PRESETS
    dp: int
    tp: int
    pp: int
    ep: int
    steps: int
    global_gc_hours: float
    adagc_hours: float
    tensors: int
    split_tensors: int = 0
    experts: int = 0

    @property
    def num_gpus(self) -> int:
        """GPUs of the layout; expert-parallel ranks are data-parallel ones."""
        return self.dp * self.tp * self.pp


PAPER_RUNS = tuple(
    PaperRun(*row)
    for row in (
        ("Llama-2 1.3B", "llama2-1.3b", 256, 1, 1, 1, 9000, 513.0, 511.6, 219),
        (
            *("Llama-2 7B", "llama2-7b", 32, 2, 1, 1),
            *(9000, 1468.2, 1402.4, 291, 226),
        ),
        (
            *("Mixtral 8x1B", "mixtral-8x1b", 256, 1, 1, 1),
            *(36000, 2060.8, 2035.2, 747),
        ),
        (
            *("ERNIE 10B-A1.4B", "ernie-10b-a1.4b", 64, 1, 4, 8),
            *(21000, 22922.0, 22572.0, 70, 0, 126),
        ),
    )
)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Time of the clips' communication in one meaning of the paper's "DP"."""

    run: PaperRun
    layout: str
    global_gc_us: float  # per step
    adagc_us: float  # per step, mean over the run with its warm-up

    @property
    def hours_saved(self) -> float:
        """GPU hours of the whole run; negative where AdaGC takes longer."""
        gpu_steps = self.run.steps * self.run.num_gpus
        return (self.global_gc_us - self.adagc_us) * gpu_steps / _US_PER_HOUR


def compare() -> list[Prediction]:
    """Predict the savings of all of the paper's runs.

    The paper's table gives "DP" alone: it may be plain data parallelism, or
    sharding of whole tensors (V1) or of slices (V2), which communicate
    differently. Experts under expert parallelism need V2.
    """
    layouts = ("DP", "sharding V1", "sharding V2")
    return [
        _predict(run, layout)
        for run in PAPER_RUNS
        for layout in (layouts if run.ep == 1 else layouts[2:])
    ]


def _predict(run: PaperRun, layout: str) -> Prediction:
    """Count calls as ``benchmark.py collectives`` does on real processes."""
    inner = run.tp * run.pp * run.ep  # fleet's order: these axes are innermost
    moe_sharding = range(0, run.num_gpus, inner)
    data = [first + i * run.tp for first in moe_sharding for i in range(run.ep)]
    global_gc: list[Call] = [(data, 4)] * 2 if layout != "DP" else []
    adaptive: list[Call] = []
    if layout == "sharding V2":
        adaptive.append((data, 4 * run.tensors))
        if run.experts:
            adaptive.append((moe_sharding, 4 * run.experts))
    if run.tp > 1:
        global_gc.append((range(run.tp), 4))
        adaptive.append((range(run.tp), 4 * run.split_tensors))
    if run.pp > 1:
        global_gc.append((range(0, inner, run.tp * run.ep), 4))
    warm_up = list(adaptive)
    if layout != "DP" or run.tp * run.pp > 1:
        warm_up.append((range(run.num_gpus), 24))  # the global norm
    rest = run.steps - WARM_UP_STEPS
    mean = WARM_UP_STEPS * step_us(warm_up) + rest * step_us(adaptive)
    return Prediction(run, layout, step_us(global_gc), mean / run.steps)


def gpu_hours_table() -> str:
    """The paper's saved GPU hours beside those that communication explains."""
    rows = []
    for found in compare():
        run = found.run
        rows.append(
            [
                f"{run.model}, {found.layout}",
                f"{run.global_gc_hours:,.1f}",
                f"{run.adagc_hours:,.1f}",
                f"{run.global_gc_hours - run.adagc_hours:.1f}",
                fixed(found.hours_saved, 3).replace("-0.000", "0.000"),
                fixed(found.adagc_us - found.global_gc_us, 1, "+"),
            ]
        )
    head = [
        *("Run, layout", "Paper: GlobalGC (hours)", "Paper: AdaGC (hours)"),
        *("Paper: saved", "Saved by communication, computed"),
        "Communication of a step, AdaGC minus GlobalGC (us)",
    ]
    return markdown_table(head, rows)
