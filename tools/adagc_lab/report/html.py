# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the HTML report of the library's parts of a page."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adagc_lab.report import figures
from adagc_lab.report.charts import QUANTITIES, all_charts, tensor_charts
from adagc_lab.report.drawings import Chart, charts_svg, method_colors
from adagc_lab.report.experiment import (
    Experiment,
    flatten,
    shared_options,
)
from adagc_lab.report.focus import choose_focus, tensor_label
from adagc_lab.report.tables import Table, measure_table
from paddle_adagc.files import atomic_write
from paddle_adagc.watch.page import html_page

FIGURE_METHODS = 7
"""Figures show no more than the first so many methods; tables show all."""


def write_report(
    path: str | os.PathLike[str],
    title: str,
    experiments: list[Experiment],
) -> Path:
    """Write one HTML file with tables, charts and how they came about.

    The file loads nothing: styles, scripts and data are inside it. It replaces
    an older report atomically.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    sections = [
        _section(experiment, f"experiment-{number}", target)
        for number, experiment in enumerate(experiments, 1)
    ]
    data = {"title": title, "sections": sections}
    return atomic_write(
        target, html_page(title, data, Path(__file__).with_name("report.js"))
    )


def write_picture(path: Path, experiment: Experiment) -> Path | None:
    """Draw the norms around the worst event as SVG; None: there is none."""
    shown = experiment.first_methods(FIGURE_METHODS)
    focus = choose_focus(shown)
    if focus is None:
        return None
    title = f"{experiment.title}: around step {focus.event:,}"
    charts = figures.norm_charts(shown, focus)
    return atomic_write(path, charts_svg(title, charts))


def _section(
    experiment: Experiment, anchor: str, target: Path
) -> dict[str, Any]:
    """Return what the page shows of an experiment."""
    common, different = common_and_different(experiment)
    shown = experiment.first_methods(FIGURE_METHODS)
    focus = choose_focus(shown)
    seed_index, start, stop, hit = 0, 0, 0, list[str]()
    norms = list[list[Chart]]()
    if focus is not None:
        seed_index, hit = focus.seed_index, focus.tensors
        start, stop = focus.start, focus.stop
        norms = figures.norm_charts(shown, focus)
    moments = tensor_charts(
        shown, hit, ("moment1", "moment2"), seed_index, start, stop
    )
    dynamics = tensor_charts(
        shown, filter(None, [shown.dynamics_tensor]), QUANTITIES
    )
    seed = experiment.seeds[seed_index]
    table = measure_table(experiment)
    return {
        "title": experiment.title,
        "description": experiment.description,
        "anchor": anchor,
        "extent": extent(experiment),
        "methods": [*method_colors(experiment.runs).items()],
        "num_seeds": table.num_seeds,
        "window": experiment.windows[0],
        "skip_steps": experiment.skip_steps,
        "has_faults": experiment.has_faults,
        "has_clean_runs": bool(experiment.clean_runs),
        "measures": _measures(table),
        "curves": _charts(all_charts(shown)),
        "norms": [_charts(row) for row in norms],
        "moments": _charts(moments),
        "dynamics": _charts(dynamics),
        "seed": "First run" if seed is None else f"Seed {seed}",
        "reason": focus and focus.reason,
        "hit": ", ".join(map(tensor_label, hit)),
        "heat": figures.heat_maps(shown, seed_index),
        "num_hidden": max(0, len(experiment.runs) - FIGURE_METHODS),
        "common": _texts(common),
        "different": {
            key: [str(values.get(m, "–")) for m in experiment.runs]
            for key, values in different.items()
        },
        "facts": _facts(experiment),
        "paths": _raw_paths(experiment, target.parent),
    }


def _measures(table: Table) -> list[dict[str, Any]]:
    return [
        {
            "group": row.measure.group,
            "label": row.measure.label,
            "title": row.measure.title,
            "meaning": row.measure.meaning,
            "is_headline": row.measure.level == "headline",
            "cells": [[text, m in row.best] for m, text in row.cells.items()],
            "winner": row.winner,
        }
        for row in table.rows
    ]


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in options.items()}


def _charts(charts: Iterable[Chart]) -> list[dict[str, Any]]:
    return [chart.as_json() for chart in charts]


def extent(experiment: Experiment) -> str:
    """Say how many seeds and steps there are: ``"3 seeds (1, 2, 3), …"``."""
    known = [str(s) for s in experiment.seeds if s is not None]
    count = len(experiment.seeds)
    seeds = f" ({', '.join(known)})" if known else ""
    text = f"{count:,} seed{'s' * (count > 1)}{seeds}"
    steps = [r.num_steps for runs in experiment.runs.values() for r in runs]
    fewest = f"{min(steps):,} to " if min(steps) < max(steps) else ""
    return (
        f"{text}, {fewest}{max(steps):,} steps a run; the first "
        f"{experiment.skip_steps:,} steps are not judged."
    )


def common_and_different(
    experiment: Experiment,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Split the methods' options: shared ones, and the others by method."""
    configs = {
        m: shared_options(runs[0]) for m, runs in experiment.runs.items()
    }
    common: dict[str, Any] = {}
    different: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(key for c in configs.values() for key in c):
        values = {m: c[key] for m, c in configs.items() if key in c}
        first, *others = values.values()
        if len(values) == len(configs) and others.count(first) == len(others):
            common[key] = first
        else:
            different[key] = values
    return common, different


def _facts(experiment: Experiment) -> dict[str, Any]:
    """Collect what ``run.json`` says of versions, machine and data."""
    runs = [run for runs in experiment.runs.values() for run in runs]
    facts: dict[str, dict[str, None]] = {}
    for key in ("versions", "machine", "data"):
        for run in runs:
            value = run.run.get(key, {})
            flat = flatten(value if isinstance(value, dict) else {key: value})
            for name, fact in flat.items():
                facts.setdefault(name, {})[str(fact)] = None
    return {name: ", ".join(known) for name, known in facts.items()}


def _raw_paths(experiment: Experiment, folder: Path) -> list[str]:
    names = [
        run.name
        for group in (experiment.runs, experiment.clean_runs)
        for runs in group.values()
        for run in runs
    ]
    root = Path(os.path.relpath(experiment.directory, folder))
    return [(root / name).as_posix() for name in names]
