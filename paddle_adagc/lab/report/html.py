# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the HTML report: one file that loads nothing, light and dark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from paddle_adagc.files import atomic_write
from paddle_adagc.lab.report import figures
from paddle_adagc.lab.report.charts import Chart, all_charts, moment_charts
from paddle_adagc.lab.report.experiment import (
    Experiment,
    flatten,
    shared_options,
)
from paddle_adagc.lab.report.focus import Focus, choose_focus, tensor_label
from paddle_adagc.lab.report.measures import measure_experiment
from paddle_adagc.lab.report.style import method_colors, svg_data_uri
from paddle_adagc.lab.report.tables import measure_table

FIGURE_METHODS = 7
"""Figures show no more than the first so many methods; tables show all."""

_PAGE = Path(__file__).parent / "page"


def write_report(
    path: str | os.PathLike[str],
    title: str,
    experiments: list[Experiment],
    *,
    claims: Sequence[tuple[str, str, str, str]] = (),
) -> Path:
    """Write one HTML file with tables, charts and how they came about.

    The file loads nothing: styles, scripts, data and pictures are inside it.
    It replaces an older report atomically. Each line of ``claims`` says where
    the paper makes it, what, the verdict, and what decided it.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader(_PAGE),
    )
    sections = [
        _section(experiment, f"experiment-{number}", target)
        for number, experiment in enumerate(experiments, 1)
    ]
    data = {
        chart["id"]: chart
        for section in sections
        for chart in (*section["curves"], *section["moments"])
    }
    page = environment.get_template("page.html.j2").render(
        title=title,
        sections=sections,
        claims=claims,
        chart_data=_json(data),
        uplot_css=_file("uplot/uPlot.min.css"),
        uplot_js=_file("uplot/uPlot.iife.min.js"),
        charts_js=_file("charts.js"),
    )
    return atomic_write(target, page)


def _file(name: str) -> Markup:
    return Markup((_PAGE / name).read_text(encoding="utf-8"))


def _json(data: Any) -> Markup:
    """Encode as JSON that cannot end its script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _section(
    experiment: Experiment, anchor: str, target: Path
) -> dict[str, Any]:
    """Return what the template shows of an experiment."""
    common, different = common_and_different(experiment)
    shown = experiment.first_methods(FIGURE_METHODS)
    focus = choose_focus(shown)
    return {
        "title": experiment.title,
        "anchor": anchor,
        "description": experiment.description,
        "extent": extent(experiment),
        "skip_steps": experiment.skip_steps,
        "window": experiment.windows[0],
        "has_faults": experiment.has_faults,
        "has_twins": bool(experiment.clean_runs),
        "colors": method_colors(experiment.runs),
        "table": measure_table(experiment, measure_experiment(experiment)),
        "compares": len(experiment.runs) > 1,
        "curves": _charts(all_charts(shown), f"{anchor}-curves"),
        "moments": _charts(
            moment_charts(shown, focus) if focus else [], f"{anchor}-moments"
        ),
        "figures": list(_pictures(shown, focus)),
        "methods": list(experiment.runs),
        "num_hidden": max(0, len(experiment.runs) - FIGURE_METHODS),
        "common": common,
        "different": different,
        "facts": _facts(experiment),
        "paths": _raw_paths(experiment, target.parent),
    }


def _charts(charts: list[Chart], group: str) -> list[dict[str, Any]]:
    """Return charts that zoom together."""
    return [
        {"id": f"{group}-{number}", "group": group, **chart.as_json()}
        for number, chart in enumerate(charts)
    ]


def _pictures(
    experiment: Experiment, focus: Focus | None
) -> Iterator[dict[str, Any]]:
    tensor = experiment.dynamics_tensor
    if tensor is not None:
        yield _picture(
            svg_data_uri(figures.dynamics_figure(experiment, tensor)),
            f"Optimizer dynamics of {tensor_label(tensor)}",
            f"Norms of {tensor_label(tensor)}, one row per method, with the "
            "training loss in black.",
        )
    seed_index = focus.seed_index if focus else 0
    seed = experiment.seeds[seed_index]
    of_seed = f"Seed {seed}" if seed is not None else "First run"
    if focus is not None:
        hit = ", ".join(tensor_label(name) for name in focus.tensors)
        yield _picture(
            svg_data_uri(figures.norm_figure(experiment, focus)),
            f"Gradient norms of {hit}",
            f"{of_seed}, around {focus.reason}. Gradient norm of the tensors "
            "that were hit, before and after the clip. AdaGC clips a tensor "
            "where its norm is above the dashed line. The optimizer gets the "
            "coloured line.",
        )
    if figures.runs_with_tensors(experiment, seed_index):
        yield _picture(
            svg_data_uri(figures.heatmap_figure(experiment, seed_index)),
            "Scale h of every tensor at every step",
            f"{of_seed}. h is what the clip multiplies a tensor's gradient by: "
            "1 leaves it alone, 0.1 lets a tenth through. Every column is the "
            "lowest value of a few steps.",
        )


def _picture(uri: str, alt: str, caption: str) -> dict[str, str]:
    return {"uri": uri, "alt": alt, "caption": caption}


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
    """Collect everything in ``run.json`` that describes all runs alike."""
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
        for group in (experiment.runs, experiment.clean_runs or {})
        for runs in group.values()
        for run in runs
    ]
    if experiment.directory is None:
        return names
    root = Path(os.path.relpath(experiment.directory, folder))
    return [(root / name).as_posix() for name in names]
