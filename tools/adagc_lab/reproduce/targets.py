# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From the grid of a target to finished runs, rows of results and a report."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from adagc_lab.markdown import markdown_table
from adagc_lab.record.files import RunRecord
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.html import write_picture, write_report
from adagc_lab.report.tables import headline
from adagc_lab.reproduce import store
from adagc_lab.reproduce.analysis import Pairs, difference, shown
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

    def describe(self, known: pd.DataFrame | None) -> str:
        """Say how many runs are missing, and about how long they take.

        The time is that of the same experiment's steps in ``known``.
        """
        todo = {
            run.directory: (experiment.name, run)
            for experiment, runs in self.grid
            for run in runs
            if not has_ended(run)
        }
        hours, num_unknown = 0.0, 0
        times = _step_times(known, self.name)
        for name, run in todo.values():
            if name in times:
                steps = run.config.train.max_steps
                hours += times[name] * steps / 3.6e6
            else:
                num_unknown += 1
        text = f"{self.name}: {len(todo)} runs, {hours:.1f} core-hours"
        if num_unknown:
            text += f" and {num_unknown} runs of unknown time"
        return text

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
            print(*(f"  {x}" for x in headline(found)), sep="\n", flush=True)
            drawn = directory / f"{config.name}.svg"
            if write_picture(drawn, found):
                print(f"  picture: {drawn}", flush=True)
            if len(config.seeds) > 1:
                print(end_table(pd.DataFrame(rows)), flush=True)
            experiments.append(found)
        if any(len(experiment.seeds) < 3 for experiment in experiments):
            print(_FEW_SEEDS)
        write_report(directory / REPORT, self.title, experiments)
        return directory / REPORT


def _step_times(known: pd.DataFrame | None, target: str) -> dict[str, float]:
    """Return milliseconds of a step by experiment."""
    if known is None:
        return {}
    own = known[(known["target"] == target) & known["step_ms"].notna()]
    return dict(own.groupby("experiment")["step_ms"].mean())


def end_table(rows: pd.DataFrame) -> str:
    """Table of the last 500 steps' losses, and their paired differences."""
    first = rows["method"].iloc[0]
    pairs = Pairs(rows, first)
    steps = pairs.lengths()[-1]
    lines = []
    for method in [first, *pairs.methods()]:
        ends = pairs.numbers(method, steps, "end")
        others, ours = pairs.values(method, steps, "end")
        delta = difference(np.subtract(ours, others).tolist())
        mean = f"{np.mean([*ends.values()]):.3f}" if ends else "–"
        text = "" if method == first else shown(delta)
        lines.append([method, str(len(ends)), mean, text])
    head = ["", "seeds", "loss of the last 500 steps", f"minus {first}'s"]
    return markdown_table(head, lines)


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
        windows=(1000, 200) if longest > 1000 else (200,),
        directory=folder,
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
