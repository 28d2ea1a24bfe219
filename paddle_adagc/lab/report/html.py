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
"""Write the self-contained HTML report."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
from matplotlib.figure import Figure

from paddle_adagc.files import atomic_write
from paddle_adagc.lab.report.config_facts import common_and_different, flatten
from paddle_adagc.lab.report.dynamics import dynamics_figure
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.focus import choose_focus
from paddle_adagc.lab.report.heatmap import has_tensors, heatmap_figure
from paddle_adagc.lab.report.labels import tensor_label
from paddle_adagc.lab.report.loss_plot import loss_figure
from paddle_adagc.lab.report.measures import measure_experiment
from paddle_adagc.lab.report.notes import reading_notes
from paddle_adagc.lab.report.style import method_colors, png_data_uri
from paddle_adagc.lab.report.summary import extent, summarise
from paddle_adagc.lab.report.tables import Table, comparison_table
from paddle_adagc.lab.report.template import PAGE, PICTURE
from paddle_adagc.lab.report.tensor_plots import (
    has_moments,
    moment_figure,
    norm_figure,
)

WIDE = 9.0
"""Width in inches of a figure for a desktop page."""

NARROW = 4.4
"""Width in inches of a figure for a phone: the same font, fewer columns."""

FIGURE_METHODS = 7
"""Figures show no more than the first so many methods; tables show all."""


@dataclasses.dataclass(frozen=True)
class _Picture:
    wide: str  # data URI
    narrow: str  # data URI
    min_width: int  # CSS pixels
    alt: str
    caption: str


@dataclasses.dataclass(frozen=True)
class _Section:
    title: str
    anchor: str
    description: str
    extent: str
    summary: dict[str, str]
    colors: dict[str, str]
    table: Table
    table_html: markupsafe.Markup
    figures: list[_Picture]
    methods: list[str]
    num_hidden: int  # methods that the figures leave out
    common: dict[str, Any]
    different: dict[str, dict[str, Any]]
    facts: dict[str, Any]
    paths: list[str]


def write_report(
    path: str | os.PathLike[str],
    title: str,
    experiments: list[Experiment],
    *,
    claims: Sequence[tuple[str, str, str, str]] = (),
    cuts: Sequence[str] = (),
) -> Path:
    """Write one HTML file with tables, figures and how they came about.

    The file loads nothing: styles and pictures are inside it. It replaces an
    older report atomically.

    Args:
        path: The file to write; its folder is created.
        title: Heading of the page.
        experiments: One section each, in this order.
        claims: Lines of the table of claims: where the paper says it, what it
            says, the verdict, and what decided it.
        cuts: What was left out, as sentences.

    Returns:
        ``path``.

    Raises:
        ValueError: ``experiments`` is empty.
    """
    if not experiments:
        raise ValueError("experiments is empty: a report needs at least one")
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined
    )
    picture = environment.from_string(PICTURE)
    page = environment.from_string(PAGE).render(
        title=title,
        sections=[
            _section(experiment, f"experiment-{number}", target)
            for number, experiment in enumerate(experiments, 1)
        ],
        notes=reading_notes(experiments),
        claims=claims,
        cuts=cuts,
        picture=lambda figure: markupsafe.Markup(picture.render(figure=figure)),
    )
    return atomic_write(target, page)


def _section(experiment: Experiment, anchor: str, target: Path) -> _Section:
    measures = measure_experiment(experiment)
    table = comparison_table(experiment, measures)
    common, different = common_and_different(experiment)
    return _Section(
        title=experiment.title,
        anchor=anchor,
        description=experiment.description,
        extent=extent(experiment),
        summary=summarise(experiment, measures),
        colors=method_colors(experiment.runs),
        table=table,
        table_html=markupsafe.Markup(table.to_html()),
        figures=list(_pictures(experiment.first_methods(FIGURE_METHODS))),
        methods=list(experiment.runs),
        num_hidden=max(0, len(experiment.runs) - FIGURE_METHODS),
        common=common,
        different=different,
        facts=_facts(experiment),
        paths=_raw_paths(experiment, target.parent),
    )


def _pictures(experiment: Experiment) -> Iterator[_Picture]:
    faults = (
        " Shaded steps are injected faults; the loss of a corrupted batch "
        "itself is left out."
        if experiment.has_faults
        else ""
    )
    yield _picture(
        lambda width: loss_figure(experiment, width),
        "Training loss of the methods",
        "Training loss; a long noisy curve is drawn pale, with the mean of "
        "the steps just before on top. Circles are spikes (10 σ, "
        f"window {experiment.windows[0]:,}).{faults}",
    )
    tensor = experiment.dynamics_tensor
    if tensor is not None:
        yield _picture(
            lambda width: dynamics_figure(experiment, tensor, width),
            f"Optimizer dynamics of {tensor_label(tensor)}",
            f"Norms of {tensor_label(tensor)}, one row per method, with the "
            "training loss in black.",
        )
    focus = choose_focus(experiment)
    seed_index = focus.seed_index if focus else 0
    seed = experiment.seeds[seed_index]
    of_seed = f"Seed {seed}" if seed is not None else "First run"
    if focus is not None:
        where = f"{of_seed}, around {focus.reason}."
        hit = ", ".join(tensor_label(name) for name in focus.tensors)
        yield _picture(
            lambda width: norm_figure(experiment, focus, width),
            f"Gradient norms of {hit}",
            f"{where} Gradient norm of the tensors that were hit, before and "
            "after the clip. AdaGC clips a tensor where its norm is above the "
            "dashed line. The optimizer gets the coloured line.",
        )
        if has_moments(experiment, focus):
            yield _picture(
                lambda width: moment_figure(experiment, focus, width),
                f"Optimizer moments of {hit}",
                f"{where} Norms of the optimizer's first and second moment of "
                "the same tensors: what the optimizer remembers of the event, "
                "and for how long.",
            )
    if has_tensors(experiment, seed_index):
        yield _picture(
            lambda width: heatmap_figure(experiment, width, seed_index),
            "Scale h of every tensor at every step",
            f"{of_seed}. h is what the clip multiplies a tensor's gradient by: "
            "1 leaves it alone, 0.1 lets a tenth through. Every column is the "
            "lowest value of a few steps.",
        )


def _picture(
    draw: Callable[[float], Figure], alt: str, caption: str
) -> _Picture:
    narrow = draw(NARROW)
    return _Picture(
        wide=png_data_uri(draw(WIDE)),
        narrow=png_data_uri(narrow),
        min_width=round(75 * narrow.get_figwidth()),
        alt=alt,
        caption=caption,
    )


def _facts(experiment: Experiment) -> dict[str, Any]:
    """Collect everything in ``run.json`` that describes all runs alike."""
    runs = [run for runs in experiment.runs.values() for run in runs]
    facts: dict[str, Any] = {}
    for key in ("versions", "machine", "data"):
        for run in runs:
            value = run.run.get(key, {})
            flat = flatten(
                value if isinstance(value, Mapping) else {key: value}
            )
            for name, fact in flat.items():
                known = facts.setdefault(name, [])
                if fact not in known:
                    known.append(fact)
    return {name: ", ".join(map(str, known)) for name, known in facts.items()}


def _raw_paths(experiment: Experiment, folder: Path) -> list[str]:
    names = [
        run.name
        for group in (experiment.runs, experiment.clean_runs or {})
        for runs in group.values()
        for run in runs
    ]
    if experiment.directory is None:
        return names
    root = Path(os.path.relpath(experiment.directory, folder))
    return [(root / name).as_posix() for name in names]
