# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""From the grids of targets to finished runs, reports, results and verdicts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from paddle_adagc.checks import check_integer, check_positive
from paddle_adagc.lab.reproduce.budget import (
    Cost,
    choose,
    cost_class,
    in_running_order,
    measured_costs,
    probes,
)
from paddle_adagc.lab.reproduce.claims import Claim
from paddle_adagc.lab.reproduce.grid import FULL, Cell, Scale, make_cells
from paddle_adagc.lab.reproduce.grid_file import (
    ExperimentConfig,
    TargetConfig,
    load_target,
)
from paddle_adagc.lab.reproduce.results import ExperimentResult
from paddle_adagc.lab.reproduce.running import (
    NEVER,
    Deadline,
    RunCell,
    has_ended,
    run_cells,
)
from paddle_adagc.lab.reproduce.timing import gpu_hours, run_timing
from paddle_adagc.lab.reproduce.writing import Finished, write_target

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

    def cuts(self, target: str) -> list[str]:
        """What is missing of a target, as sentences."""
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
        return sentences


class Reproduction:
    """Targets on their way from their grids to their reports.

    Args:
        grid_files: YAML files, each named after its target.
        output_dir: A folder per target, and the runs of all of them.
        claims: The paper's; those of other targets are left alone.
        num_jobs: Runs at a time.
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
        num_jobs: int = 1,
        run: RunCell | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._targets = {path.stem: load_target(path) for path in grid_files}
        self._files = {path.stem: path for path in grid_files}
        self._output_dir = output_dir
        self._store = output_dir / STORE
        self._claims = list(claims)
        self._num_jobs = check_integer("num_jobs", num_jobs, 1)
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
        cells = in_running_order(
            self._cells(planned, extent.scale)
            for planned in sorted(extent.experiments, key=lambda p: p.priority)
        )
        run_cells(
            cells,
            self._num_jobs,
            deadline=extent.deadline,
            seconds_of=extent.seconds_of,
            run=self._run,
        )
        return [
            self._write(name, target, extent, timings[name])
            for name, target in self._targets.items()
        ]

    def _make_cells(self, planned: Planned, scale: Scale) -> list[Cell]:
        return make_cells(planned.config, planned.grid_file, self._store, scale)

    def _time(self, deadline: Deadline) -> dict[str, list[ExperimentResult]]:
        """Timings by target, one after the other, while nothing else runs."""
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
            claims=[claim for claim in self._claims if claim.target == name],
        )


def _spent(timings: Mapping[str, Sequence[ExperimentResult]]) -> float:
    """Seconds that the timings took when they were made."""
    return sum(
        result.cells[0].timings.get("elapsed_seconds", 0.0)
        for results in timings.values()
        for result in results
    )


def _complete(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of the seeds that all methods and twins have finished."""
    missing = {cell.seed for cell in cells if not has_ended(cell)}
    return [cell for cell in cells if cell.seed not in missing]
