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
"""From a grid's file to its finished runs, its tables and its report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from paddle_adagc.pretrain.grid import (
    Cell,
    ExperimentConfig,
    load_experiments,
    make_cells,
    run_cells,
)
from paddle_adagc.pretrain.record import RunRecord
from paddle_adagc.report.experiment import Experiment
from paddle_adagc.report.focus import choose_focus
from paddle_adagc.report.html import write_report
from paddle_adagc.report.loss_plot import loss_figure
from paddle_adagc.report.tables import comparison_table
from paddle_adagc.report.tensor_plots import norm_figure

REPORT = "report.html"
TABLES = "tables.md"
FIGURES = "figures"


def reproduce(
    grid_file: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    max_steps: int | None = None,
    num_jobs: int = 1,
) -> Path:
    """Run what is missing of a grid, print its tables, write its report.

    Args:
        grid_file: YAML file of experiments.
        output_dir: Run directories, ``report.html``, ``tables.md`` and
            ``figures/``.
        max_steps: Length of every run instead of the configs'.
        num_jobs: Runs at a time.

    Returns:
        Path of the report.

    Raises:
        ValueError: The grid or one of its run configs is not valid.
        RuntimeError: A run failed.
    """
    output_dir = Path(output_dir)
    title, configs = load_experiments(grid_file)
    grid = [
        (config, make_cells(config, grid_file, output_dir, max_steps))
        for config in configs
    ]
    run_cells([cell for _, cells in grid for cell in cells], num_jobs)
    experiments = {
        config.name: _experiment(config, cells, output_dir)
        for config, cells in grid
    }
    text = f"# {title}\n"
    for name, experiment in experiments.items():
        table = comparison_table(experiment).to_markdown(legend=False)
        text += f"\n## {experiment.title}\n\n{table}"
        _save_figures(experiment, output_dir / FIGURES / name)
    (output_dir / TABLES).write_text(text)
    print(text)
    return write_report(output_dir / REPORT, title, list(experiments.values()))


def _experiment(
    config: ExperimentConfig, cells: Sequence[Cell], output_dir: Path
) -> Experiment:
    faulty = _records([c for c in cells if not c.is_clean_twin])
    clean = _records([c for c in cells if c.is_clean_twin])
    full_length = max(
        run.run["config"]["train"]["max_steps"]
        for runs in faulty.values()
        for run in runs
    )
    return Experiment(
        title=config.title,
        description=config.description,
        runs=faulty,
        clean_runs=clean or None,
        skip_steps=min(config.skip_steps, full_length // 10),
        directory=output_dir / config.name,
    )


def _save_figures(experiment: Experiment, prefix: Path) -> None:
    """The report's first two figures as files, for slides and READMEs."""
    prefix.parent.mkdir(exist_ok=True)
    figures = {"loss": loss_figure(experiment)}
    focus = choose_focus(experiment)
    if focus is not None:
        figures["norms"] = norm_figure(experiment, focus)
    for name, figure in figures.items():
        figure.savefig(f"{prefix}-{name}.png", dpi=100)


def _records(cells: Sequence[Cell]) -> dict[str, list[RunRecord]]:
    records: dict[str, list[RunRecord]] = {}
    for cell in cells:
        records.setdefault(cell.method, []).append(
            RunRecord.load(cell.directory)
        )
    return records
