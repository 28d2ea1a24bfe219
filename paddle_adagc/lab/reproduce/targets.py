# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From the grids of targets to finished runs, reports, results and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paddle_adagc.checks import check_integer
from paddle_adagc.lab.reproduce.catalogue import Catalogue
from paddle_adagc.lab.reproduce.claims import Claim, targets_of
from paddle_adagc.lab.reproduce.grid import make_cells
from paddle_adagc.lab.reproduce.grid_file import (
    load_target,
)
from paddle_adagc.lab.reproduce.merging import merge_results
from paddle_adagc.lab.reproduce.results import ExperimentResult, TargetResult
from paddle_adagc.lab.reproduce.running import RunCell, run_cells
from paddle_adagc.lab.reproduce.timing import gpu_hours, run_timing
from paddle_adagc.lab.reproduce.verdicts import (
    PooledResults,
    Verdict,
    judge,
)
from paddle_adagc.lab.reproduce.writing import (
    Finished,
    early_text,
    write_target,
)

STORE = "cells"
"""Folder of all run directories, each named after its config."""


class Reproduction:
    """Targets on their way from their grids to their reports.

    Args:
        grid_files: YAML files, each named after its target.
        output_dir: A folder per target, and the runs of all of them.
        claims: The paper's; those of other targets are left alone.
        committed: Results by target whose runs the verdicts take, too.
        num_jobs: Runs at a time.
        say: Gets a text for people before and after an experiment.
        run: Runs one cell; by default in a process of its own.

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
        say: Callable[[str], None] = lambda text: None,
        run: RunCell | None = None,
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

    def reproduce(self, max_steps: int | None = None) -> list[Finished]:
        """Run what is missing and write every target's report.

        Args:
            max_steps: Length of every run instead of the configs'.

        Raises:
            RuntimeError: A run failed.
            ValueError: A bad number of steps.
        """
        grids = [
            (
                name,
                config,
                make_cells(
                    config, self._files[name], self._store, max_steps=max_steps
                ),
            )
            for name, target in self._targets.items()
            for config in target.experiments
        ]
        timings = {name: self._time(name) for name in self._targets}
        for number, (name, config, cells) in enumerate(grids, 1):
            self._say(f"{number} of {len(grids)}: {config.title}")
            run_cells(cells, self._num_jobs, self._run)
            self._say(early_text(config, cells, self._output_dir / name))
        cuts = []
        if max_steps is not None:
            cuts.append(f"Every run has {max_steps:,} steps.")
        return [
            write_target(
                self._output_dir / name,
                target=name,
                title=target.title,
                runs=[
                    (config, cells)
                    for its_target, config, cells in grids
                    if its_target == name
                ],
                timings=timings[name],
                cuts=cuts,
                judge_with=self._judge,
            )
            for name, target in self._targets.items()
        ]

    def _judge(self, result: TargetResult) -> list[Verdict]:
        earlier = self._known.get(result.target)
        if earlier is not None:
            result = merge_results(earlier, result)
        self._known[result.target] = result
        claims = [c for c in self._claims if c.target == result.target]
        return judge(claims, PooledResults(self._catalogue, self._known))

    def _time(self, name: str) -> list[ExperimentResult]:
        """Time what a target times, while nothing else runs."""
        target = self._targets[name]
        found = [
            run_timing(timing, self._files[name], self._output_dir / "timings")
            for timing in target.timings
        ]
        return [*found, *([gpu_hours()] if target.gpu_hours else [])]
