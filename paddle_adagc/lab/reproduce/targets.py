# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From the grids of targets to finished runs, reports, results and verdicts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from paddle_adagc.checks import check_integer, check_positive
from paddle_adagc.lab.reproduce.budget import (
    INTERIM_SEEDS,
    Cost,
    choose,
    cost_class,
    measured_costs,
    probes,
    split_at_interim,
)
from paddle_adagc.lab.reproduce.catalogue import Catalogue
from paddle_adagc.lab.reproduce.claims import (
    Claim,
    claims_about,
    targets_of,
)
from paddle_adagc.lab.reproduce.grid import FULL, Cell, Scale, make_cells
from paddle_adagc.lab.reproduce.grid_file import (
    ExperimentConfig,
    TargetConfig,
    load_target,
)
from paddle_adagc.lab.reproduce.merging import merge_results
from paddle_adagc.lab.reproduce.results import ExperimentResult, TargetResult
from paddle_adagc.lab.reproduce.running import (
    NEVER,
    Deadline,
    RunCell,
    has_ended,
    run_cells,
)
from paddle_adagc.lab.reproduce.summary import summarise_experiment
from paddle_adagc.lab.reproduce.timing import gpu_hours, run_timing
from paddle_adagc.lab.reproduce.verdicts import (
    PooledResults,
    Verdict,
    is_open,
    judge,
)
from paddle_adagc.lab.reproduce.writing import (
    Finished,
    early_text,
    load_experiment,
    write_target,
)

STORE = "cells"
"""Folder of all run directories, each named after its config."""

REPORT_SECONDS = 10.0
"""Time set aside for the tables and figures of an experiment."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """An experiment of a target."""

    target: str
    grid_file: Path
    config: ExperimentConfig

    @property
    def priority(self) -> int:
        """See :class:`ExperimentConfig`."""
        return self.config.priority

    def __hash__(self) -> int:
        return hash((self.target, self.config.name))


@dataclasses.dataclass(frozen=True)
class Extent:
    """What is run of the planned experiments, and until when."""

    experiments: list[Planned]
    scale: Scale = FULL
    deadline: Deadline = NEVER
    seconds_of: Callable[[Cell], float] = lambda cell: 0.0
    minutes: float | None = None
    """Budget that the scale is due to."""

    left_out: tuple[Planned, ...] = ()
    """Experiments that it does not pay for."""

    stopped: list[Planned] = dataclasses.field(default_factory=list)
    """Experiments that were stopped for futility."""

    def cuts(self, target: str) -> list[str]:
        """Return what is missing of a target, as sentences."""
        sentences = []
        if self.scale.max_steps is not None:
            sentences.append(f"Every run has {self.scale.max_steps:,} steps.")
        if self.minutes is not None and self.scale.num_seeds is not None:
            sentences.append(
                f"A budget of {self.minutes:g} minutes for all targets cut "
                f"this to at most {self.scale.num_seeds} seeds and "
                f"{self.scale.ratio:.0%} of the steps."
            )
        titles = [
            f"“{planned.config.title}”"
            for planned in self.left_out
            if planned.target == target
        ]
        if titles:
            sentences.append(f"It did not pay for: {', '.join(titles)}.")
        sentences += [
            f"“{planned.config.title}” was stopped for futility after "
            f"{INTERIM_SEEDS} seeds."
            for planned in self.stopped
            if planned.target == target
        ]
        return sentences


class Reproduction:
    """Targets on their way from their grids to their reports.

    Args:
        grid_files: YAML files, each named after its target.
        output_dir: A folder per target, and the runs of all of them.
        claims: The paper's; those of other targets are left alone.
        committed: Results by target whose runs the verdicts take, too.
        num_jobs: Runs at a time.
        say: Gets a text for people as soon as an experiment is done.
        run: Runs one cell; by default in a process of its own.
        clock: Time in seconds.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A grid, or one of its run configs, is not valid.
    """

    def __init__(
        self,
        grid_files: Sequence[Path],
        output_dir: Path,
        *,
        claims: Sequence[Claim] = (),
        committed: Mapping[str, TargetResult] | None = None,
        num_jobs: int = 1,
        say: Callable[[str], None] | None = None,
        run: RunCell | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._targets = {path.stem: load_target(path) for path in grid_files}
        self._files = {path.stem: path for path in grid_files}
        self._output_dir = output_dir
        self._store = output_dir / STORE
        self._claims = [
            c for c in claims if {*targets_of([c])} <= {*self._files}
        ]
        self._known = dict(committed or {})
        self._catalogue = Catalogue(self._files)
        self._num_jobs = check_integer("num_jobs", num_jobs, 1)
        self._say = say
        self._run = run
        self._clock = clock
        self._cells = cache(self._make_cells)
        self._planned = [
            Planned(name, self._files[name], config)
            for name, target in self._targets.items()
            for config in target.experiments
        ]

    def reproduce(
        self, *, max_steps: int | None = None, minutes: float | None = None
    ) -> list[Finished]:
        """Run what is missing and write every target's report.

        Args:
            max_steps: Length of every run instead of the configs'.
            minutes: Time for everything; see
                :mod:`paddle_adagc.lab.reproduce.budget` for what is cut. At the
                end of it runs that have not finished are left out.

        Raises:
            RuntimeError: A run failed.
            ValueError: Both limits, or one out of its range.
        """
        if max_steps is not None and minutes is not None:
            raise ValueError(
                f"max_steps={max_steps} and minutes={minutes}: the budget "
                "chooses the steps, give one of the two"
            )
        start = self._clock()
        deadline = NEVER
        if minutes is not None:
            seconds = 60 * check_positive("minutes", minutes)
            reserve = min(REPORT_SECONDS * len(self._planned), seconds / 4)
            deadline = Deadline(start + seconds - reserve, self._clock)
        timings = self._time(deadline)
        if minutes is None:
            extent = Extent(self._planned, Scale(max_steps=max_steps))
        else:
            seconds = deadline.end - start - _spent(timings)
            extent = self._within(deadline, seconds, minutes)
        in_order = sorted(extent.experiments, key=lambda p: p.priority)
        for number, planned in enumerate(in_order, 1):
            if self._say is not None:
                title = planned.config.title
                self._say(f"{number} of {len(in_order)}: {title}")
            self._run_experiment(planned, extent)
            self._announce(planned, extent)
        return [
            self._write(name, target, extent, timings[name])
            for name, target in self._targets.items()
        ]

    def _run_experiment(self, planned: Planned, extent: Extent) -> None:
        """Run an experiment; look at futility before the last seeds."""
        early, late = split_at_interim(self._cells(planned, extent.scale))
        self._run_cells(early, extent)
        may_stop = late and extent.scale.max_steps is None
        if may_stop and self._is_futile(planned, early):
            extent.stopped.append(planned)
        else:
            self._run_cells(late, extent)

    def _announce(self, planned: Planned, extent: Extent) -> None:
        """Say what came out before the next experiment, which may be long."""
        done = _complete(self._cells(planned, extent.scale))
        if self._say is not None and done:
            directory = self._output_dir / planned.target
            self._say(early_text(planned.config, done, directory))

    def _run_cells(self, cells: Sequence[Cell], extent: Extent) -> None:
        run_cells(
            cells,
            self._num_jobs,
            deadline=extent.deadline,
            seconds_of=extent.seconds_of,
            run=self._run,
        )

    def _is_futile(self, planned: Planned, early: Sequence[Cell]) -> bool:
        config, target = planned.config, planned.target
        claims = claims_about(self._claims, target, config.name)
        done = _complete(early)
        if not claims or not done:
            return False
        experiment = load_experiment(config, done, self._output_dir / target)
        result = TargetResult(
            target=target,
            title=self._targets[target].title,
            experiments=[summarise_experiment(experiment, config.name)],
        )
        return not is_open(claims, self._source(result), target, config.name)

    def _source(self, result: TargetResult) -> PooledResults:
        """Everything known, this result included."""
        earlier = self._known.get(result.target)
        if earlier is not None:
            result = merge_results(earlier, result)
        self._known[result.target] = result
        return PooledResults(self._catalogue, self._known)

    def _judge(self, result: TargetResult) -> list[Verdict]:
        claims = [c for c in self._claims if c.target == result.target]
        return judge(claims, self._source(result))

    def _make_cells(self, planned: Planned, scale: Scale) -> list[Cell]:
        return make_cells(planned.config, planned.grid_file, self._store, scale)

    def _time(self, deadline: Deadline) -> dict[str, list[ExperimentResult]]:
        """Time target after target, while nothing else runs."""
        found: dict[str, list[ExperimentResult]] = {}
        for name, target in self._targets.items():
            found[name] = []
            for timing in target.timings:
                result = run_timing(
                    timing,
                    self._files[name],
                    self._output_dir / "timings",
                    deadline,
                )
                if result is not None:
                    found[name].append(result)
            if target.gpu_hours:
                found[name].append(gpu_hours())
        return found

    def _within(
        self, deadline: Deadline, seconds: float, minutes: float
    ) -> Extent:
        """Measure what runs cost and apply the budget's rule."""
        full = [c for p in self._planned for c in self._cells(p, FULL)]
        short = probes(full, self._store)
        run_cells(
            [*short.values()],
            self._num_jobs,
            deadline=deadline,
            run=self._run,
        )
        costs = measured_costs(short)
        dearest = max(
            costs.values(), key=lambda c: c.of(1000), default=Cost(0.0, 0.0)
        )

        def seconds_of(cell: Cell) -> float:
            cost = costs.get(cost_class(cell.config), dearest)
            return cost.of(cell.config.train.max_steps)

        spent = sum(seconds_of(cell) for cell in short.values())
        choice = choose(
            self._planned,
            self._cells,
            seconds_of,
            self._num_jobs,
            seconds - spent / self._num_jobs,
        )
        left_out = set(choice.left_out)
        return Extent(
            experiments=[p for p in self._planned if p not in left_out],
            scale=choice.scale,
            deadline=deadline,
            seconds_of=seconds_of,
            minutes=minutes,
            left_out=choice.left_out,
        )

    def _write(
        self,
        name: str,
        target: TargetConfig,
        extent: Extent,
        timings: list[ExperimentResult],
    ) -> Finished:
        cuts = extent.cuts(name)
        runs: list[tuple[ExperimentConfig, list[Cell]]] = []
        for planned in extent.experiments:
            if planned.target != name:
                continue
            cells = self._cells(planned, extent.scale)
            if planned in extent.stopped:
                cells, _ = split_at_interim(cells)
            done = _complete(cells)
            if len(done) < len(cells):
                seeds = sorted({c.seed for c in cells} - {c.seed for c in done})
                cuts.append(
                    f"Time was up for seeds {', '.join(map(str, seeds))} of "
                    f"“{planned.config.title}”."
                )
            if done:
                runs.append((planned.config, done))
        return write_target(
            self._output_dir / name,
            target=name,
            title=target.title,
            runs=runs,
            timings=timings,
            cuts=cuts,
            judge_with=self._judge,
        )


def _spent(timings: Mapping[str, Sequence[ExperimentResult]]) -> float:
    """Seconds that the timings took when they were made."""
    return sum(
        result.cells[0].timings.get("elapsed_seconds", 0.0)
        for results in timings.values()
        for result in results
    )


def _complete(cells: Sequence[Cell]) -> list[Cell]:
    """Keep the seeds that all methods and twins have finished."""
    missing = {cell.seed for cell in cells if not has_ended(cell)}
    return [cell for cell in cells if cell.seed not in missing]
