# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From the grid of a target to finished runs, rows of results and a report."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from adagc_lab.markdown import markdown_table
from adagc_lab.record.files import RunRecord
from adagc_lab.report.differences import difference, shown
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.page import write_picture, write_report
from adagc_lab.report.table import measure_experiment
from adagc_lab.reproduce import store
from adagc_lab.reproduce.grid import (
    ExperimentConfig,
    PlannedRun,
    load_target,
    make_runs,
)
from adagc_lab.reproduce.running import has_ended, run_all
from paddle_adagc.checks import check_integer

STORE = "cells"
"""Folder of all run directories, each named after its config."""

REPORT = "report.html"
_FEW_SEEDS = """\
Fewer than 3 seeds are an illustration, not a result: docs/results.md has more.\
"""


@dataclasses.dataclass(frozen=True)
class Target:
    """A grid with its runs, as options cut it."""

    name: str
    title: str
    grid: list[tuple[ExperimentConfig, list[PlannedRun]]]

    @classmethod
    def plan(
        cls,
        path: Path,
        output_dir: Path,
        *,
        max_steps: int | None = None,
        num_seeds: int | None = None,
        only: str | None = None,
    ) -> Target:
        """Read a grid's file. Methods whose code is gone have no runs."""
        config = load_target(path).only(only)
        if num_seeds is not None:
            check_integer("seeds", num_seeds, 1)
        grid = []
        for experiment in config.experiments:
            runs = make_runs(
                experiment,
                path,
                output_dir / STORE,
                max_steps=max_steps,
                num_seeds=num_seeds,
            )
            kept = [run for run in runs if run.method not in config.former]
            if kept:
                grid.append((experiment, kept))
        return cls(path.stem, config.title, grid)

    def missing(self, known: pd.DataFrame | None) -> tuple[int, float, int]:
        """Count the runs that are missing, their core-hours, and the guessed.

        The time of a step is that of the same experiment in ``known``; without
        one it is guessed as the mean of all experiments.
        """
        todo = {
            run.directory: (experiment.name, run)
            for experiment, runs in self.grid
            for run in runs
            if not has_ended(run)
        }
        times, guess = _step_times(known, self.name)
        hours = sum(
            times.get(name, guess) * run.config.train.max_steps / 3.6e6
            for name, run in todo.values()
        )
        num_guessed = sum(name not in times for name, _ in todo.values())
        return len(todo), hours, num_guessed

    def run(self, output_dir: Path, results: Path, num_jobs: int) -> Path:
        """Run what is missing, add the rows; return the report's path."""
        directory = output_dir / self.name
        experiments = []
        for number, (config, runs) in enumerate(self.grid, 1):
            print(f"{number} of {len(self.grid)}: {config.title}", flush=True)
            run_all(runs, num_jobs)
            rows = [store.make_row(self.name, config, run) for run in runs]
            store.append(results, self.name, rows)
            found = load_experiment(config, runs, directory)
            print(result_table(measure_experiment(found)), flush=True)
            drawn = directory / f"{config.name}.svg"
            if write_picture(drawn, found):
                print(f"picture: {drawn}", flush=True)
            experiments.append(found)
        if any(len(experiment.seeds) < 3 for experiment in experiments):
            print(_FEW_SEEDS)
        write_report(directory / REPORT, self.title, experiments)
        return directory / REPORT


def plan_table(targets: Sequence[Target], known: pd.DataFrame | None) -> str:
    """Table of the runs that targets lack, and about how long they take."""
    found = [target.missing(known) for target in targets]
    lines = [
        [target.name, number, f"{hours:.1f}", guessed or ""]
        for target, (number, hours, guessed) in zip(targets, found, strict=True)
    ]
    if len(lines) > 1:
        number, hours, guessed = map(sum, zip(*found, strict=True))
        lines.append(["all", number, f"{hours:.1f}", guessed or ""])
    head = ["target", "missing runs", "core-hours", "runs of a guessed time"]
    return markdown_table(head, lines, pad=True)


def _step_times(
    known: pd.DataFrame | None, target: str
) -> tuple[dict[str, float], float]:
    """Milliseconds of a step by experiment, and the mean of all targets."""
    if known is None:
        return {}, 0.0
    timed = known[known["step_ms"].notna()]
    own = timed[timed["target"] == target]
    return dict(own.groupby("experiment")["step_ms"].mean()), float(
        timed["step_ms"].mean()
    )


def result_table(measured: pd.DataFrame) -> str:
    """Table of :func:`.measure_experiment`, with paired differences of ends."""
    first = measured["method"].iloc[0]
    ends = measured.pivot(index="seed", columns="method", values="last_loss")
    lines = []
    for method, runs in measured.groupby("method", sort=False):
        gains = (ends[method] - ends[first]).tolist()
        lines.append(
            [
                method,
                len(runs),
                f"{runs['peaks'].sum():.0f}",
                f"{runs['worst'].max():.3g}",
                f"{runs['last_loss'].mean():.3f}",
                "" if method == first else shown(difference(gains)),
            ]
        )
    head = ["", "seeds", "peaks above 0.5 nat", "worst rise (nat)"]
    head += ["loss at the end (nat)", f"minus {first}'s"]
    return markdown_table(head, lines, pad=True)


def load_experiment(
    config: ExperimentConfig, runs: Sequence[PlannedRun], directory: Path
) -> Experiment:
    """Load finished runs, each linked to by a name that people can read."""
    folder = directory / config.name
    longest = max(run.config.train.max_steps for run in runs)
    records: dict[bool, dict[str, list[RunRecord]]] = {False: {}, True: {}}
    for run in runs:
        record = RunRecord.load(_linked(run, folder))
        of_method = records[run.is_clean_twin].setdefault(run.method, [])
        of_method.append(record)
    return Experiment(
        title=config.title,
        description=config.description,
        runs=records[False],
        clean_runs=records[True],
        skip_steps=min(config.skip_steps, longest // 10),
        window=1000 if longest > 1000 else 200,
        dynamics_tensor=config.dynamics,
    )


def _linked(run: PlannedRun, folder: Path) -> Path:
    """Link to the run directory by a name that people can read."""
    link = folder / run.name
    folder.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        raise FileExistsError(
            f"{link} is in the way of a link to {run.directory}: remove it, "
            "or choose another --output"
        )
    link.symlink_to(os.path.relpath(run.directory, folder))
    return link
