# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The paper's GPU hours, and the share that the clips explain."""

from __future__ import annotations

import dataclasses
import warnings

from paddle_adagc.lab.plan.costs import step_costs
from paddle_adagc.lab.plan.dry_run import plan_ranks
from paddle_adagc.lab.plan.interconnect import Interconnect
from paddle_adagc.lab.train.config import ParallelConfig, RunConfig, TrainConfig

_WARM_UP_STEPS = 100
_US_PER_HOUR = 3.6e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperRun:
    """A column of the paper's table of GPU hours (tab:energy_consumption)."""

    model: str
    preset: str
    """Key of :data:`paddle_adagc.lab.models.families.PRESETS`."""

    dp: int
    tp: int = 1
    pp: int = 1
    ep: int = 1
    steps: int
    global_gc_hours: float
    adagc_hours: float

    @property
    def num_gpus(self) -> int:
        """GPUs of the layout; expert-parallel ranks are data-parallel ones."""
        return self.dp * self.tp * self.pp

    def ms_per_step(self, gpu_hours: float) -> float:
        """Milliseconds of wall-clock time per step."""
        return gpu_hours * _US_PER_HOUR / (self.num_gpus * self.steps) / 1e3


PAPER_RUNS = (
    PaperRun(
        model="Llama-2 1.3B",
        preset="llama2-1.3b",
        dp=256,
        steps=9000,
        global_gc_hours=513.0,
        adagc_hours=511.6,
    ),
    PaperRun(
        model="Llama-2 7B",
        preset="llama2-7b",
        dp=32,
        tp=2,
        steps=9000,
        global_gc_hours=1468.2,
        adagc_hours=1402.4,
    ),
    PaperRun(
        model="Mixtral 8x1B",
        preset="mixtral-8x1b",
        dp=256,
        steps=36000,
        global_gc_hours=2060.8,
        adagc_hours=2035.2,
    ),
    PaperRun(
        model="ERNIE 10B-A1.4B",
        preset="ernie-10b-a1.4b",
        dp=64,
        pp=4,
        ep=8,
        steps=21000,
        global_gc_hours=22922.0,
        adagc_hours=22572.0,
    ),
)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Time of the clips' communication in one meaning of the paper's "DP"."""

    layout: str
    global_gc_us: float
    """Per step."""

    adagc_us: float
    """Per step, mean over the run with its warm-up."""

    hours_saved: float
    """GPU hours of the whole run; negative where AdaGC takes longer."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A run of the paper and the plan's predictions for it."""

    run: PaperRun
    predictions: tuple[Prediction, ...]


def compare(interconnect: Interconnect) -> list[Comparison]:
    """Predict the savings of all of the paper's runs.

    The paper's table gives "DP" alone: it may be plain data parallelism, or
    sharding of whole tensors (V1) or of slices (V2), which communicate
    differently. Experts under expert parallelism need V2.
    """
    return [
        Comparison(
            run,
            tuple(
                _predict(run, name, parallel, interconnect)
                for name, parallel in _layouts(run).items()
            ),
        )
        for run in PAPER_RUNS
    ]


def _layouts(run: PaperRun) -> dict[str, ParallelConfig]:
    split = ParallelConfig(sharding=run.dp, tp=run.tp, pp=run.pp, ep=run.ep)
    if run.ep > 1:
        return {"sharding V2": split}
    return {
        "DP": ParallelConfig(dp=run.dp, tp=run.tp, pp=run.pp),
        "sharding V1": dataclasses.replace(split, sharding_split_param=False),
        "sharding V2": split,
    }


def _predict(
    run: PaperRun,
    layout: str,
    parallel: ParallelConfig,
    interconnect: Interconnect,
) -> Prediction:
    config = RunConfig(
        model={"preset": run.preset},
        clip={"name": "adagc"},
        train=TrainConfig(output_dir="unused", max_steps=run.steps),
        parallel=parallel,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        costs = step_costs(plan_ranks(config), interconnect)
    global_gc, warm_up, adaptive = (cost.us for cost in costs)
    rest = run.steps - _WARM_UP_STEPS
    adagc = (_WARM_UP_STEPS * warm_up + rest * adaptive) / run.steps
    saved = (global_gc - adagc) * run.steps * run.num_gpus / _US_PER_HOUR
    return Prediction(layout, global_gc, adagc, saved)
