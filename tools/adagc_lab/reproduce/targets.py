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
from adagc_lab.report.differences import LEAST, difference, shown
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.page import write_picture, write_report
from adagc_lab.report.table import MEASURES, measure_experiment, seed_gains
from adagc_lab.reproduce import store
from adagc_lab.reproduce.grid import (
    ExperimentConfig,
    PlannedRun,
    load_target,
    make_runs,
)
from adagc_lab.reproduce.running import commit, has_ended, run_all

STORE = "cells"
"""Folder of all run directories, each named after its config."""

Missing = dict[Path, tuple[str, PlannedRun]]
"""Directory of a missing run -> ``"target/experiment"``, the run."""


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

    def missing(self) -> Missing:
        """Return the runs that have not ended."""
        return {
            run.directory: (f"{self.name}/{experiment.name}", run)
            for experiment, runs in self.grid
            for run in runs
            if not has_ended(run)
        }

    def run(self, output_dir: Path, results: Path, num_jobs: int) -> Path:
        """Run what is missing, add the rows; return the report's path."""
        directory = output_dir / self.name
        experiments = []
        for number, (config, runs) in enumerate(self.grid, 1):
            print(f"{number} of {len(self.grid)}: {config.title}", flush=True)
            run_all(runs, num_jobs)
            rows = [store.make_row(self.name, config, run) for run in runs]
            store.append(results, self.name, rows)
            if others := {row["commit"] for row in rows} - {commit() or ""}:
                kept = "; ".join(sorted(others)) or "unknown"
                print(f"with runs of other commits: {kept}", flush=True)
            found = load_experiment(config, runs, directory)
            print(result_table(measure_experiment(found)), flush=True)
            drawn = directory / f"{config.name}.svg"
            if write_picture(drawn, found):
                print(f"picture: {drawn}", flush=True)
            experiments.append(found)
        if any(len(experiment.seeds) < LEAST for experiment in experiments):
            print(f"Fewer than {LEAST} seeds only illustrate, without limits")
        return write_report(directory / "report.html", self.title, experiments)


def effort(missing: Missing, known: pd.DataFrame) -> str:
    """Say how many runs are missing, and about how long a core takes for them.

    The time of a step is that of the same experiment in ``known``; without one
    it is guessed: the mean of all.
    """
    names = known["target"] + "/" + known["experiment"]
    times = known.groupby(names)["step_ms"].mean().dropna()
    guess = known["step_ms"].mean()
    time = sum(
        times.get(name, guess) * run.config.train.max_steps / 60_000
        for name, run in missing.values()
    )
    text = f"{time:.1f} minutes" if time < 60 else f"{time / 60:.1f} hours"
    guessed = any(name not in times for name, _ in missing.values())
    text += " on one core" + " (guessed)" * guessed
    return f"missing runs: {len(missing):,}, about {text}"


def plan_text(targets: Sequence[Target], known: pd.DataFrame) -> str:
    """Say which runs targets lack, and about how long they take."""
    lines = [f"{t.name}: {effort(t.missing(), known)}" for t in targets]
    every: Missing = {}
    for target in targets:
        every = every | target.missing() | every  # a run of the first with it
    if len(targets) > 1:
        lines.append(f"all: {effort(every, known)}")
    for name, run in [*every.values()][:20]:
        steps = f"{run.config.train.max_steps:,} steps"
        lines.append(f"  {name}/{run.name}: {steps}")
    if len(every) > 20:
        lines.append(f"  and {len(every) - 20:,} more")
    return "\n".join(lines)


def result_table(measured: pd.DataFrame) -> str:
    """Table of :func:`.measure_experiment`, with paired differences of ends."""
    first = measured["method"].iloc[0]
    gains = seed_gains(measured, "last_loss")
    lines = [
        [
            method,
            len(runs),
            f"{runs['peaks'].sum():.0f}",
            f"{runs['worst'].max():.3g}",
            f"{runs['last_loss'].mean():.3f}",
            "" if method == first else shown(difference(gains[method])),
        ]
        for method, runs in measured.groupby("method", sort=False)
    ]
    names = ("peaks", "worst", "last_loss")
    limits = ", 95% limits" * (len(gains) >= LEAST)
    head = ["", "seeds", *(MEASURES[name].label.lower() for name in names)]
    head.append(f"loss minus {first}'s (paired by seed{limits})")
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
        dynamics_tensor=config.dynamics,
    )


def _linked(run: PlannedRun, folder: Path) -> Path:
    """Link to the run directory by a name that people can read."""
    link = folder / run.name
    folder.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        link.unlink()
    link.symlink_to(os.path.relpath(run.directory, folder))
    return link
