# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Communication cost of each kind of clip step, on its slowest rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from paddle_adagc.lab.plan.dry_run import (
    ADAPTIVE,
    WARM_UP,
    Collective,
    RankPlan,
)
from paddle_adagc.lab.plan.interconnect import ALGORITHMS, Interconnect

GLOBAL_GC = "GlobalGC"
ADAGC_WARM_UP = f"AdaGC, {WARM_UP}"
ADAGC = f"AdaGC, {ADAPTIVE}"


@dataclasses.dataclass(frozen=True)
class StepCost:
    """One step of a clip, on the rank with the longest communication."""

    step: str
    """:data:`GLOBAL_GC`, :data:`ADAGC_WARM_UP` or :data:`ADAGC`."""

    rank: int
    """First rank of the pipeline stage with the longest communication."""

    collectives: tuple[Collective, ...]
    ring_us: float
    """Microseconds of the collectives, one after the other, with rings."""

    tree_us: float
    """The same with trees."""

    @property
    def num_bytes(self) -> int:
        """Bytes that the rank passes to the collectives."""
        return sum(c.num_bytes for c in self.collectives)

    @property
    def us(self) -> float:
        """Microseconds with the faster algorithm, which NCCL chooses."""
        return min(self.ring_us, self.tree_us)


def step_costs(
    ranks: Sequence[RankPlan], interconnect: Interconnect
) -> list[StepCost]:
    """Return the costs of GlobalGC's step, AdaGC's warm-up and AdaGC's step."""
    by_step = {
        GLOBAL_GC: [(r.rank, r.global_gc) for r in ranks],
        ADAGC_WARM_UP: [(r.rank, r.adagc[WARM_UP]) for r in ranks],
        ADAGC: [(r.rank, r.adagc[ADAPTIVE]) for r in ranks],
    }
    return [
        max(
            (_cost(step, rank, calls, interconnect) for rank, calls in plans),
            key=lambda cost: (cost.us, cost.num_bytes),
        )
        for step, plans in by_step.items()
    ]


def _cost(
    step: str,
    rank: int,
    collectives: tuple[Collective, ...],
    interconnect: Interconnect,
) -> StepCost:
    ring_us, tree_us = (
        sum(
            interconnect.all_reduce_us(c.ranks, c.num_bytes, algorithm)
            for c in collectives
        )
        for algorithm in ALGORITHMS
    )
    return StepCost(step, rank, collectives, ring_us, tree_us)
