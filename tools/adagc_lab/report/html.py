# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the HTML report: one file that loads nothing, light and dark."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from adagc_lab.report import figures
from adagc_lab.report.charts import (
    QUANTITIES,
    Chart,
    all_charts,
    tensor_charts,
)
from adagc_lab.report.experiment import (
    Experiment,
    flatten,
    shared_options,
)
from adagc_lab.report.focus import choose_focus, tensor_label
from adagc_lab.report.style import method_colors, svg_data_uri
from adagc_lab.report.tables import measure_table
from paddle_adagc.files import atomic_write

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
        for name in ("curves", "moments", "dynamics")
        for chart in section[name]
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


def write_picture(path: Path, experiment: Experiment) -> Path | None:
    """Draw the norms around the worst event as PNG; None: there is none."""
    shown = experiment.first_methods(FIGURE_METHODS)
    focus = choose_focus(shown)
    if focus is None:
        return None
    drawn = io.BytesIO()
    figures.norm_figure(shown, focus).savefig(drawn, format="png", dpi=120)
    return atomic_write(path, drawn.getvalue())


def _section(
    experiment: Experiment, anchor: str, target: Path
) -> dict[str, Any]:
    """Return what the template shows of an experiment."""
    common, different = common_and_different(experiment)
    shown = experiment.first_methods(FIGURE_METHODS)
    focus = choose_focus(shown)
    seed_index, start, stop, hit = 0, 0, 0, list[str]()
    if focus is not None:
        seed_index, hit = focus.seed_index, focus.tensors
        start, stop = focus.start, focus.stop
    moments = tensor_charts(
        shown, hit, ("moment1", "moment2"), seed_index, start, stop
    )
    dynamics = filter(None, [shown.dynamics_tensor])
    seed = experiment.seeds[seed_index]
    has_tensors = bool(figures.runs_with_tensors(shown, seed_index))
    return {
        **vars(experiment),
        "anchor": anchor,
        "extent": extent(experiment),
        "has_faults": experiment.has_faults,
        "colors": method_colors(experiment.runs),
        "table": measure_table(experiment),
        "compares": len(experiment.runs) > 1,
        "curves": _charts(all_charts(shown), f"{anchor}-curves"),
        "moments": _charts(moments, f"{anchor}-moments"),
        "dynamics": _charts(
            tensor_charts(shown, dynamics, QUANTITIES), f"{anchor}-dynamics"
        ),
        "seed": "First run" if seed is None else f"Seed {seed}",
        "focus": focus,
        "hit": ", ".join(map(tensor_label, hit)),
        "norms": focus and svg_data_uri(figures.norm_figure(shown, focus)),
        "heatmap": has_tensors
        and svg_data_uri(figures.heatmap_figure(shown, seed_index)),
        "num_hidden": max(0, len(experiment.runs) - FIGURE_METHODS),
        "common": common,
        "different": different,
        "facts": _facts(experiment),
        "paths": _raw_paths(experiment, target.parent),
    }


def _charts(charts: Iterable[Chart], group: str) -> list[dict[str, Any]]:
    """Return charts that zoom together."""
    return [
        {"id": f"{group}-{number}", "group": group, **chart.as_json()}
        for number, chart in enumerate(charts)
    ]


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
    """Collect everything in ``run.json`` that is the same for all runs."""
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
