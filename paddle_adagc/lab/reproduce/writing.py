# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write what came out of a target: page, tables, figures, result lines."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from paddle_adagc.files import atomic_write
from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.report.charts import loss_chart
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.figures import (
    draw_chart,
    dynamics_figure,
    norm_figure,
)
from paddle_adagc.lab.report.focus import choose_focus
from paddle_adagc.lab.report.html import FIGURE_METHODS, write_report
from paddle_adagc.lab.report.tables import (
    comparison_table,
    conclusion,
    headline,
)
from paddle_adagc.lab.reproduce.grid import Cell
from paddle_adagc.lab.reproduce.grid_file import ExperimentConfig
from paddle_adagc.lab.reproduce.markdown import (
    target_markdown,
    verdicts_markdown,
)
from paddle_adagc.lab.reproduce.results import (
    ExperimentResult,
    TargetResult,
    write_results,
)
from paddle_adagc.lab.reproduce.summary import summarise_experiment
from paddle_adagc.lab.reproduce.verdicts import Verdict

REPORT = "report.html"
TABLES = "tables.md"
RESULTS = "results.jsonl"
FIGURES = "figures"


@dataclasses.dataclass(frozen=True)
class Finished:
    """A target that has been written."""

    directory: Path
    result: TargetResult
    verdicts: list[Verdict]
    text: str
    """What to print: what was seen, or the verdicts with their tables."""

    report: Path | None
    """The HTML report; None where nothing was trained."""


def write_target(
    directory: Path,
    *,
    target: str,
    title: str,
    runs: Sequence[tuple[ExperimentConfig, Sequence[Cell]]],
    timings: Sequence[ExperimentResult],
    cuts: Sequence[str],
    judge_with: Callable[[TargetResult], list[Verdict]],
) -> Finished:
    """Write ``report.html``, ``tables.md``, ``figures/``, ``results.jsonl``.

    Args:
        directory: Of the target.
        target: Its name.
        title: Its heading.
        runs: Experiments with their finished cells.
        timings: Results that are no runs.
        cuts: What was left out, as sentences.
        judge_with: Verdicts on the target's claims, from its results.
    """
    experiments = [
        load_experiment(config, cells, directory) for config, cells in runs
    ]
    result = TargetResult(
        target=target,
        title=title,
        cuts=[*cuts],
        experiments=[
            *(
                summarise_experiment(experiment, config.name, config.paper)
                for (config, _), experiment in zip(
                    runs, experiments, strict=True
                )
            ),
            *timings,
        ],
    )
    write_results(directory / RESULTS, result)
    verdicts = judge_with(result)
    for (config, _), experiment in zip(runs, experiments, strict=True):
        _save_figures(experiment, directory / FIGURES / config.name)
    detailed = _detailed_tables(title, cuts, experiments)
    text = "\n".join((*cuts, *conclusion(experiments)))
    if verdicts or timings:
        text = target_markdown(result, level=1)
        if verdicts:
            text += f"\n## Claims\n\n{verdicts_markdown(verdicts)}"
        atomic_write(directory / TABLES, f"{text}\n{detailed}")
    else:
        atomic_write(directory / TABLES, detailed)
    report = directory / REPORT
    report.unlink(missing_ok=True)
    if experiments:
        write_report(
            report,
            title,
            experiments,
            claims=[
                (
                    v.claim.where,
                    v.claim.claim,
                    v.label,
                    v.evidence.replace("\n", "; "),
                )
                for v in verdicts
            ],
            cuts=cuts,
        )
    return Finished(
        directory, result, verdicts, text, report if experiments else None
    )


def early_text(
    config: ExperimentConfig, cells: Sequence[Cell], directory: Path
) -> str:
    """Draw an experiment's loss; return what came out, as text.

    Args:
        config: The experiment.
        cells: Those that have ended.
        directory: Of the target.
    """
    experiment = load_experiment(config, cells, directory)
    picture = _save_loss(experiment, directory / FIGURES / config.name)
    return "\n".join(
        f"  {line}" for line in (*headline(experiment), f"picture: {picture}")
    )


def load_experiment(
    config: ExperimentConfig, cells: Sequence[Cell], directory: Path
) -> Experiment:
    """Load finished cells, each linked to by a name that people can read."""
    folder = directory / config.name
    longest = max(cell.config.train.max_steps for cell in cells)
    return Experiment(
        title=config.title,
        description=config.description,
        runs=_records([c for c in cells if not c.is_clean_twin], folder),
        clean_runs=_records([c for c in cells if c.is_clean_twin], folder)
        or None,
        skip_steps=min(config.skip_steps, longest // 10),
        windows=(1000, 200) if longest > 1000 else (200,),
        directory=folder,
        dynamics_tensor=config.dynamics,
    )


def _records(cells: Sequence[Cell], folder: Path) -> dict[str, list[RunRecord]]:
    records: dict[str, list[RunRecord]] = {}
    for cell in cells:
        record = RunRecord.load(_linked(cell, folder))
        records.setdefault(cell.method, []).append(record)
    return records


def _linked(cell: Cell, folder: Path) -> Path:
    """Link to the cell's run directory by a name that people can read.

    Raises:
        FileExistsError: Something else has that name.
    """
    link = folder / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        raise FileExistsError(
            f"{link} is in the way of a link to {cell.directory}: remove it, "
            "or choose another --output"
        )
    link.symlink_to(os.path.relpath(cell.directory, folder))
    return link


def _detailed_tables(
    title: str, cuts: Sequence[str], experiments: Sequence[Experiment]
) -> str:
    text = f"# {title}\n"
    if cuts:
        text += f"\n{' '.join(cuts)}\n"
    for experiment in experiments:
        table = comparison_table(experiment).to_markdown()
        text += f"\n## {experiment.title}\n\n{table}"
    return text


def _save_figures(experiment: Experiment, prefix: Path) -> None:
    """Save some of the report's figures, for slides and READMEs."""
    _save_loss(experiment, prefix)
    experiment = experiment.first_methods(FIGURE_METHODS)
    figures = {}
    focus = choose_focus(experiment)
    if focus is not None:
        figures["norms"] = norm_figure(experiment, focus)
    if experiment.dynamics_tensor is not None:
        figures["dynamics"] = dynamics_figure(
            experiment, experiment.dynamics_tensor
        )
    for name, figure in figures.items():
        figure.savefig(f"{prefix}-{name}.png", dpi=100)


def _save_loss(experiment: Experiment, prefix: Path) -> Path:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    path = prefix.with_name(f"{prefix.name}-loss.png")
    figure = draw_chart(loss_chart(experiment.first_methods(FIGURE_METHODS)))
    figure.savefig(path, dpi=100)
    return path
