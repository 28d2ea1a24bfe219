# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Memory of a rank, time of a clip's communication, the paper's GPU hours."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from types import SimpleNamespace

from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import (
    dygraph_sharding_optimizer,
)

from adagc_lab.benchmark.counts import Collective
from adagc_lab.plan.dry_run import RankPlan, plan_ranks
from adagc_lab.section import Count, Positive, section
from adagc_lab.train.config import ParallelConfig, RunConfig, TrainConfig
from adagc_lab.train.tasks import PretrainTask, make_task
from paddle_adagc.parallel.layout import TensorLayout

_WARM_UP_STEPS = 100
_US_PER_HOUR = 3.6e9
_GRADIENT_BYTES = 4  # float32 under every precision (``amp_master_grad``)

_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float8": 2}
_MASTER_BYTES = {"float32": 0, "bfloat16": 4, "float8": 4}
_STATE_BYTES = {
    **dict.fromkeys(("adamw", "adamw_agc", "adamw_clippy", "muon"), 8),
    **dict.fromkeys(("spam", "stable_adamw"), 8),
    "lion": 4,
}
_MUON_MATRIX_BYTES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one rank."""

    weights: int  # float32 or bfloat16 (under float8, too)
    gradients: int
    """float32, of all tensors of the rank: sharding stage 1 splits them only
    once they are summed."""

    optimizer: int  # float32 moments and master weights, of this rank's share
    activations: int  # see adagc_lab.models.activations

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


def num_values(tensors: Sequence[TensorLayout]) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors)


def optimizer_share(
    tensors: Sequence[TensorLayout], parallel: ParallelConfig
) -> list[tuple[TensorLayout, int]]:
    """Return a rank's tensors with the number of values that it optimizes.

    Sharding V2 gives every rank a slice of every tensor: over the sharding
    group, or for experts under expert parallelism over the ranks that hold the
    same experts. V1 gives whole tensors to ranks, as fleet does; the result is
    the share of the rank with the most values.
    """
    if parallel.sharding == 1:
        return [(t, math.prod(t.shape)) for t in tensors]
    if parallel.sharding_split_param:
        sharers = {True: parallel.moe_sharding, False: parallel.sharding}
        return [
            (t, math.ceil(math.prod(t.shape) / sharers[t.is_expert]))
            for t in tensors
        ]
    owned = dygraph_sharding_optimizer.DygraphShardingOptimizer
    dealt = owned._partition_parameters(
        SimpleNamespace(
            _parameter_list=tensors, _sharding_world_size=parallel.sharding
        )
    )
    return [
        (t, math.prod(t.shape)) for t in max(dealt.values(), key=num_values)
    ]


def rank_memory(
    rank: RankPlan,
    stage: int,
    task: PretrainTask,
    optimizer_name: str,
    *,
    recompute: bool,
) -> Memory:
    """Return the bytes of the first rank of a pipeline stage."""
    tensors, precision = rank.tensors, task.train.precision
    optimizer = 0
    for tensor, share in optimizer_share(tensors, task.parallel):
        state = _STATE_BYTES[optimizer_name]
        if optimizer_name == "muon" and tensor.key in rank.matrices:
            state = _MUON_MATRIX_BYTES
        optimizer += share * (state + _MASTER_BYTES[precision])
    keys = [tensor.key for tensor in tensors]
    return Memory(
        weights=num_values(tensors) * _WEIGHT_BYTES[precision],
        gradients=num_values(tensors) * _GRADIENT_BYTES,
        optimizer=optimizer,
        activations=task.activation_bytes(stage, keys, recompute=recompute),
    )


@section
class Interconnect:
    """Nodes of GPUs on NVLink, and InfiniBand between them.

    Latencies are NCCL's own for its low-latency (LL) protocol, which it takes
    for messages of a few kB: ``baseLat`` and ``hwLat``
    of ``src/graph/tuning.cc`` in NCCL 2.19 and later. Bandwidths are those of
    data sheets, one direction: NVLink 4 of an H100 (900 GB/s both ways), one
    400 Gbit/s InfiniBand adapter per GPU. None of these numbers was measured
    here.
    """

    gpus_per_node: Count = 8
    """GPUs on one NVLink; ranks fill the nodes in their order."""

    launch_us: Positive = 6.6
    """Microseconds of an all-reduce before its first message."""

    nvlink_us: Positive = 0.6
    """Microseconds of a message between two GPUs of a node."""

    ib_ring_us: Positive = 2.7
    """Microseconds of a message of a ring between two nodes."""

    ib_tree_us: Positive = 5.0
    """Microseconds of a message of a tree between two nodes."""

    nvlink_gb_per_s: Positive = 450.0  # GB/s of a GPU inside of its node
    ib_gb_per_s: Positive = 50.0  # GB/s of a GPU between nodes

    def all_reduce_us(
        self, ranks: Collection[int], num_bytes: int
    ) -> tuple[float, float]:
        """Microseconds of an all-reduce as ring and tree, by alpha and beta.

        With p ranks on k nodes, at most m on each: a ring passes 2 (p - 1)
        messages one after the other, 2 (k - 1) of them between nodes, and moves
        2 (p - 1) / p of the bytes; a tree passes 2 (m - 1) inside of a node and
        2 log2(k) between nodes, and moves the bytes twice. The slowest link
        sets the bandwidth (Thakur et al. 2005; NCCL counts the same hops).
        """
        size = len(ranks)
        if size == 1:
            return 0.0, 0.0
        on_node = Counter(rank // self.gpus_per_node for rank in ranks)
        num_nodes = len(on_node)
        gb_per_s = self.ib_gb_per_s if num_nodes > 1 else self.nvlink_gb_per_s
        bytes_us = num_bytes / (gb_per_s * 1e3)
        ring = (
            2 * (size - num_nodes) * self.nvlink_us
            + 2 * (num_nodes - 1) * self.ib_ring_us
            + 2 * (size - 1) / size * bytes_us
        )
        tree = (
            2 * (max(on_node.values()) - 1) * self.nvlink_us
            + 2 * math.ceil(math.log2(num_nodes)) * self.ib_tree_us
            + 2 * bytes_us
        )
        return self.launch_us + ring, self.launch_us + tree


def parse_interconnect(settings: Sequence[str]) -> Interconnect:
    """Return the default interconnect, changed by ``key=value``."""
    values = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        values[key] = int(text) if text.isdecimal() else text
    try:
        return Interconnect(**values)  # type: ignore[arg-type]
    except ValueError as error:
        keys = ", ".join(f.name for f in dataclasses.fields(Interconnect))
        raise ValueError(f"interconnect: {error}; keys: {keys}") from error


@dataclasses.dataclass(frozen=True)
class StepCost:
    """One step of a clip, on the rank with the longest communication."""

    step: str  # a key of RankPlan.steps
    collectives: tuple[Collective, ...]
    us: float
    """One after the other, all as rings or all as trees, what is faster."""

    @property
    def num_bytes(self) -> int:
        """Bytes that the rank passes to the collectives."""
        return sum(c.num_bytes for c in self.collectives)


def step_costs(
    ranks: Sequence[RankPlan], interconnect: Interconnect
) -> list[StepCost]:
    """Return the costs of GlobalGC's step, AdaGC's warm-up and AdaGC's step."""
    found = []
    for step in ranks[0].steps:
        costs = []
        for rank in ranks:
            calls = rank.steps[step]
            times = [
                interconnect.all_reduce_us(c.ranks, c.num_bytes) for c in calls
            ]
            us = min(map(sum, zip(*times, strict=True)), default=0.0)
            costs.append(StepCost(step, calls, us))
        found.append(max(costs, key=lambda cost: (cost.us, cost.num_bytes)))
    return found


@dataclasses.dataclass(frozen=True)
class PaperRun:
    """A column of the paper's table of GPU hours (tab:energy_consumption)."""

    model: str
    preset: str  # of adagc_lab.models.families.PRESETS
    dp: int
    tp: int
    pp: int
    ep: int
    steps: int
    global_gc_hours: float
    adagc_hours: float

    @property
    def num_gpus(self) -> int:
        """GPUs of the layout; expert-parallel ranks are data-parallel ones."""
        return self.dp * self.tp * self.pp


PAPER_RUNS = tuple(
    PaperRun(*row)
    for row in (
        ("Llama-2 1.3B", "llama2-1.3b", 256, 1, 1, 1, 9000, 513.0, 511.6),
        ("Llama-2 7B", "llama2-7b", 32, 2, 1, 1, 9000, 1468.2, 1402.4),
        ("Mixtral 8x1B", "mixtral-8x1b", 256, 1, 1, 1, 36000, 2060.8, 2035.2),
        (
            *("ERNIE 10B-A1.4B", "ernie-10b-a1.4b", 64, 1, 4, 8),
            *(21000, 22922.0, 22572.0),
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


def compare(interconnect: Interconnect) -> list[Prediction]:
    """Predict the savings of all of the paper's runs.

    The paper's table gives "DP" alone: it may be plain data parallelism, or
    sharding of whole tensors (V1) or of slices (V2), which communicate
    differently. Experts under expert parallelism need V2.
    """
    found = []
    for run in PAPER_RUNS:
        split = ParallelConfig(sharding=run.dp, tp=run.tp, pp=run.pp, ep=run.ep)
        layouts = {"sharding V2": split}
        if run.ep == 1:
            plain = ParallelConfig(dp=run.dp, tp=run.tp, pp=run.pp)
            whole = dataclasses.replace(split, sharding_split_param=False)
            layouts = {"DP": plain, "sharding V1": whole, **layouts}
        for name, parallel in layouts.items():
            times = _mean_us(run, parallel, interconnect)
            found.append(Prediction(run, name, *times))
    return found


def _mean_us(
    run: PaperRun, parallel: ParallelConfig, interconnect: Interconnect
) -> tuple[float, float]:
    """Return microseconds of communication per step: GlobalGC's and AdaGC's."""
    config = RunConfig(
        model={"preset": run.preset},
        clip={"name": "adagc"},
        train=TrainConfig(output_dir="unused", max_steps=run.steps),
        parallel=parallel,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        costs = step_costs(
            plan_ranks(make_task(config), config.clip), interconnect
        )
    global_gc, warm_up, adaptive = (cost.us for cost in costs)
    rest = run.steps - _WARM_UP_STEPS
    return global_gc, (_WARM_UP_STEPS * warm_up + rest * adaptive) / run.steps
