# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the report: one HTML page with tables and figures."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from adagc_lab.report import figures
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.focus import choose_focus
from adagc_lab.report.table import (
    MEASURES,
    difference_table,
    measure_experiment,
    measure_table,
    seed_gains,
)
from paddle_adagc.files import atomic_write

FIGURE_METHODS = 7
"""Figures show no more than the first so many methods; tables show all."""

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 72em; margin: 2em auto;
       padding: 0 1em; color: #222; background: #fff }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0;
        display: block; overflow-x: auto }
th, td { padding: .2em .8em; border-bottom: 1px solid #ddd; text-align: right }
tbody th { text-align: left; font-weight: normal }
img { max-width: 100% }
"""


def write_report(
    path: str | os.PathLike[str], title: str, experiments: Sequence[Experiment]
) -> Path:
    """Write one HTML file with tables, figures and how they came about.

    The file loads nothing: the figures are inside it. It replaces an older
    report atomically.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    parts = [
        part for experiment in experiments for part in _section(experiment)
    ]
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</html>\n"
    )
    return atomic_write(target, text)


def write_picture(path: Path, experiment: Experiment) -> Path | None:
    """Draw the norms around the worst event as SVG; None: there is none."""
    shown = experiment.first_methods(FIGURE_METHODS)
    focus = choose_focus(shown)
    figure = focus and figures.norm_figure(shown, focus.tensors, *focus[:3])
    return atomic_write(path, figures.svg(figure)) if figure else None


def _section(experiment: Experiment) -> Iterator[str]:
    measured = measure_experiment(experiment)
    table = measure_table(measured)
    yield f"<h2>{escape(experiment.title)}</h2>"
    yield f"<p>{escape(experiment.description)} {extent(experiment)}</p>"
    yield table.to_html(border=0)
    if len(experiment.seeds) > 1:
        differences = difference_table(measured)
        if not differences.empty:
            yield f"<h3>Differences from {escape(experiment.reference)}</h3>"
            yield "<p>Means over seeds, with 95% limits from four on.</p>"
            yield differences.to_html(border=0)
            yield "<p>The loss at the end, seed by seed:</p>"
            yield seed_gains(measured, "last_loss").to_html(
                border=0, na_rep="–", float_format="{:+.4f}".format
            )
    yield from _figures(experiment)
    yield "<p>Settings and versions are in each run's run.json.</p>"
    yield "<details><summary>What the measures are</summary><ul>"
    for row in MEASURES.values():
        if row.label in table.index and row.meaning:
            yield f"<li>{escape(row.label)}: {escape(row.meaning)}.</li>"
    yield "</ul></details>"


def _figures(experiment: Experiment) -> Iterator[str]:
    shown = experiment.first_methods(FIGURE_METHODS)
    hidden = len(experiment.runs) - len(shown.runs)
    if hidden:
        yield f"<p>The figures leave out the last {hidden} methods.</p>"
    yield _image(
        "Losses. A line is the mean over seeds and a few steps, a band the "
        "smallest and largest value. Yellow: injected faults",
        figures.curves(shown),
    )
    focus = choose_focus(shown)
    if focus is not None:
        yield _image(
            f"Seed {experiment.seeds[focus.seed_index]}: {focus.reason}. The "
            f"tensors whose gradients rose most: {', '.join(focus.tensors)}",
            figures.norm_figure(shown, focus.tensors, *focus[:3]),
        )
    if experiment.dynamics_tensor:
        tensor = experiment.dynamics_tensor
        yield _image(
            f"Norms of {tensor}, seed {experiment.seeds[0]}",
            figures.norm_figure(shown, [tensor]),
        )


def _image(caption: str, figure: Figure | None) -> str:
    if figure is None:
        return ""
    data = base64.b64encode(figures.svg(figure).encode()).decode()
    text = escape(caption[0].upper() + caption[1:])
    return (
        f'<figure><img alt="{text}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{text}.</figcaption></figure>"
    )


def extent(experiment: Experiment) -> str:
    """Say how many seeds and steps there are: ``"3 seeds (1, 2, 3), …"``."""
    seeds = experiment.seeds
    text = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    text += f" ({', '.join(map(str, seeds))})"
    steps = [run.num_steps for run in experiment.all_runs()]
    fewest = f"{min(steps):,} to " if min(steps) < max(steps) else ""
    return (
        f"{text}, {fewest}{max(steps):,} steps a run; the first "
        f"{experiment.skip_steps:,} steps are not judged."
    )
