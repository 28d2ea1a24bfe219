# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a budget of minutes pays for: few experiments with all their seeds.

The rule. Probes measure, on this machine and with as many runs at a time, what
a step of each kind of model costs and what a run costs besides. Then the first
of :data:`SCALES` is taken whose runs fit; none has fewer seeds than a verdict
takes. If even the last does not fit,
experiments are left out one by one: the highest ``priority`` first, later ones
first among equals; what remains gets the first scale that fits. Then those that
still fit beside it, as they share its runs or are short, are taken back, the
last one left out first. The same answer follows from the same costs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.reproduce.comparison import MIN_SEEDS
from paddle_adagc.lab.reproduce.grid import Cell, Scale, in_store
from paddle_adagc.lab.train.config import RunConfig

PROBE_STEPS = 60
SCALES = (
    Scale(),
    *(Scale(num_seeds=MIN_SEEDS, ratio=r) for r in (1.0, 0.9, 0.8, 0.7, 0.6)),
)
"""From all down to 60% of the steps of the seeds that a verdict takes."""

INTERIM_SEEDS = 5
"""Seeds after which an experiment stops if no verdict can come of it."""

USABLE = 0.92
"""Share of the time that is planned: estimates are not exact."""


class HasPriority(Protocol):
    """An experiment as the rule sees it."""

    @property
    def priority(self) -> int:
        """The highest is left out first."""


E = TypeVar("E", bound=HasPriority)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Time of a run: ``startup_seconds + steps * step_seconds``."""

    startup_seconds: float
    step_seconds: float

    def of(self, num_steps: int) -> float:
        """Seconds of a run of this many steps."""
        return self.startup_seconds + num_steps * self.step_seconds


@dataclasses.dataclass(frozen=True)
class Choice(Generic[E]):
    """What a budget pays for."""

    scale: Scale
    left_out: tuple[E, ...]
    """Experiments that it does not, in the order of leaving them out."""

    seconds: float
    """Estimate of the time of what remains, with all jobs at work."""

    fits: bool
    """False: not even one experiment at the last scale does."""


def cost_class(config: RunConfig) -> str:
    """Return what the time of a step depends on, as a key."""
    model = dict(config.model)
    train = config.train
    facts = [
        {key: value for key, value in model.items() if "init" not in key},
        dataclasses.asdict(config.record),
        dataclasses.asdict(config.parallel),
        [config.data.kind, config.data.seq_length],
        [train.batch_size, train.gradient_accumulation_steps, train.precision],
        config.optimizer.name,
    ]
    return json.dumps(facts, sort_keys=True)


def probes(cells: Iterable[Cell], store: Path) -> dict[str, Cell]:
    """One short run for each class of costs among ``cells``."""
    found: dict[str, Cell] = {}
    for cell in cells:
        key = cost_class(cell.config)
        if key in found:
            continue
        train = dataclasses.replace(
            cell.config.train, max_steps=PROBE_STEPS, save_every=0, eval_every=0
        )
        config = dataclasses.replace(cell.config, train=train, faults=[])
        found[key] = dataclasses.replace(cell, config=in_store(config, store))
    return found


def measured_costs(probe_cells: Mapping[str, Cell]) -> dict[str, Cost]:
    """Costs by class from the probes' runs; the first third is not timed.

    A probe that was stopped by a deadline has no cost.
    """
    costs = {}
    for key, cell in probe_cells.items():
        if not (cell.directory / "run.json").exists():
            continue
        run = RunRecord.load(cell.directory)
        elapsed = run.run.get("elapsed_seconds")
        if elapsed is None or run.num_steps < 3:
            continue
        seconds = run.metrics["step_seconds"]
        step = float(seconds[run.num_steps // 3 :].mean())
        startup = max(0.0, float(elapsed) - step * run.num_steps)
        costs[key] = Cost(startup, step)
    return costs


def choose(
    experiments: Sequence[E],
    make_cells: Callable[[E, Scale], Sequence[Cell]],
    seconds_of: Callable[[Cell], float],
    num_jobs: int,
    seconds: float,
) -> Choice[E]:
    """Apply the rule.

    Args:
        experiments: In the order in which they matter.
        make_cells: The runs of an experiment at a scale.
        seconds_of: Time of a run, whether it has ended already or not, so
            that a command that is given again chooses the same.
        num_jobs: Runs at a time.
        seconds: Time to spend.
    """

    def seconds_for(kept: Sequence[E], scale: Scale) -> float:
        cells = (c for e in kept for c in make_cells(e, scale))
        return parallel_seconds(cells, seconds_of, num_jobs)

    usable = USABLE * seconds
    kept = list(experiments)
    left_out: list[E] = []
    while True:
        for scale in SCALES:
            if seconds_for(kept, scale) <= usable:
                for experiment in reversed([*left_out]):
                    if seconds_for([*kept, experiment], scale) <= usable:
                        kept.append(experiment)
                        left_out.remove(experiment)
                estimate = seconds_for(kept, scale)
                return Choice(scale, tuple(left_out), estimate, True)
        if len(kept) == 1:
            estimate = seconds_for(kept, SCALES[-1])
            return Choice(SCALES[-1], tuple(left_out), estimate, False)
        highest = max(experiment.priority for experiment in kept)
        last = max(i for i, e in enumerate(kept) if e.priority == highest)
        left_out.append(kept.pop(last))


def parallel_seconds(
    cells: Iterable[Cell],
    seconds_of: Callable[[Cell], float],
    num_jobs: int,
) -> float:
    """Return an upper bound of the time of ``cells``, begun in any order.

    Graham's bound for list scheduling; cells with one directory count once.
    """
    times = [seconds_of(c) for c in {c.directory: c for c in cells}.values()]
    longest = max(times, default=0.0)
    return (sum(times) - longest) / num_jobs + longest


def split_at_interim(cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Return the runs of an experiment before and after the look at futility.

    Args:
        cells: All runs of the experiment, seed by seed.

    Returns:
        Those of the first :data:`INTERIM_SEEDS` seeds, and the rest.
    """
    seeds = [*dict.fromkeys(cell.seed for cell in cells)]
    early = set(seeds[:INTERIM_SEEDS])
    return (
        [cell for cell in cells if cell.seed in early],
        [cell for cell in cells if cell.seed not in early],
    )
