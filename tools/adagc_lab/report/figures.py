# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The figures of a report, drawn with matplotlib."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterable, Sequence
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from adagc_lab.record.files import RunRecord
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.focus import fault_bursts, tensor_label
from adagc_lab.report.judged import memorises, model_loss

COLORS = {
    **{"GlobalGC": "#d1495b", "GlobalGC 1": "#d1495b"},
    **{"GlobalGC 0.1": "#edae49", "AdaGC": "#00798c"},
    **{"warmup_ema": "#66a182", "ZClip": "#8d6a9f"},
}
"""Methods that have the same color everywhere."""

_OTHER_COLORS = (
    *("#66a182", "#8d6a9f", "#edae49", "#4f6d7a", "#b56576"),
    *("#1f77b4", "#7f7f7f"),
)

QUANTITIES = {
    "norm": "gradient",
    "clipped_norm": "clipped gradient",
    "moment1": "first moment",
    "moment2": "second moment",
}
"""Logged quantity of a tensor -> what a figure calls its norm."""

_METRICS = {
    "global_grad_norm": ("global gradient norm", 1.0),
    "clipped_fraction": ("tensors clipped (%)", 100.0),
    "eval_loss": ("validation loss (nat)", 1.0),
}
"""Logged metric -> its label and factor."""

_NUM_BINS = 400
_FEW = 30
"""Fewer values are drawn as points, too."""


def method_colors(methods: Iterable[str]) -> dict[str, str]:
    """One color per method."""
    names = [*methods]
    fixed = {name: COLORS[name] for name in names if name in COLORS}
    others = itertools.cycle(
        [c for c in _OTHER_COLORS if c not in fixed.values()]
    )
    return {name: fixed.get(name) or next(others) for name in names}


def set_log_axis(panel: Axes, which: Literal["x", "y"] = "y") -> None:
    """Make an axis logarithmic, with ticks such as 0.2 and 0.5."""
    panel.set(**{f"{which}scale": "log"})
    axis: Axis = {"x": panel.xaxis, "y": panel.yaxis}[which]
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(LogLocator(subs=(2, 5)))
    low, high = axis.get_view_interval()
    is_short = low > 0 and high / low < 30
    axis.set_minor_formatter("{x:g}" if is_short else NullFormatter())


def svg(figure: Figure) -> str:
    """Return a figure as SVG, the same text for the same numbers."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "adagc"}):
        figure.savefig(
            file,
            format="svg",
            bbox_inches="tight",
            metadata={"Date": None, "Creator": None},
        )
    return file.getvalue()


def curves(experiment: Experiment) -> Figure | None:
    """Draw the training loss and what else was logged, over all steps.

    A line is the mean over the seeds and over a bin of steps, the band their
    smallest and largest value. Corrupted batches are left out of the loss.
    None: nothing is finite.
    """
    series: dict[str, dict[str, list[np.ndarray]]] = {
        "training loss (nat)": {
            method: [model_loss(run) for run in runs]
            for method, runs in experiment.runs.items()
        },
        "loss over the run\nwithout faults (nat)": _excess(experiment),
    }
    for name, (label, factor) in _METRICS.items():
        series[label] = {
            method: [
                factor * run.metrics[name]
                for run in runs
                if name in run.metrics
                and not (name == "eval_loss" and memorises(run))
            ]
            for method, runs in experiment.runs.items()
        }
    shown = {
        label: by
        for label, by in series.items()
        if any(np.isfinite(x).any() for runs in by.values() for x in runs)
    }
    if not shown:
        return None
    figure = _figure(9, 2.2 * len(shown))
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    colors = method_colors(experiment.runs)
    for panel, (label, by) in zip(panels, shown.items(), strict=True):
        for method, runs in by.items():
            _curve(panel, runs, colors[method], method)
        panel.set_ylabel(label)
        is_positive = all(
            (x[np.isfinite(x)] > 0).all() for runs in by.values() for x in runs
        )
        if is_positive and "%" not in label:
            set_log_axis(panel)
        _shade_faults(panel, experiment.all_runs())
    _finish(figure, panels[0], panels[-1:])
    return figure


def _excess(experiment: Experiment) -> dict[str, list[np.ndarray]]:
    """Loss above the same run without faults, where there is one."""
    found: dict[str, list[np.ndarray]] = {}
    for method, twins in experiment.clean_runs.items():
        pairs = zip(experiment.runs[method], twins, strict=True)
        for run, twin in pairs:
            if run.faults:
                number = min(run.num_steps, twin.num_steps)
                excess = model_loss(run)[:number] - twin.loss[:number]
                found.setdefault(method, []).append(excess)
    return found


def _curve(
    panel: Axes, runs: Sequence[np.ndarray], color: str, label: str
) -> None:
    """Draw the mean and the range of ``[num_steps]`` values per seed."""
    length = max(map(len, runs), default=0)
    values = np.full((len(runs), length), np.nan)
    for row, run in zip(values, runs, strict=True):
        row[: len(run)] = np.where(np.isfinite(run), run, np.nan)
    if np.isnan(values).all():
        return
    edges = _edges(length)
    parts = np.split(values, edges[1:], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # bins without a value
        mean, low, high = (
            np.array([f(part) for part in parts])
            for f in (np.nanmean, np.nanmin, np.nanmax)
        )
    known = np.isfinite(mean)
    panel.fill_between(
        edges[known], low[known], high[known], color=color, alpha=0.2, lw=0
    )
    marker = "." if known.sum() < _FEW else None
    panel.plot(
        edges[known],
        mean[known],
        marker=marker,
        color=color,
        lw=0.9,
        label=label,
    )


def _edges(length: int) -> np.ndarray:
    """First steps of equal bins."""
    number = max(1, min(_NUM_BINS, length))
    return np.linspace(0, length, number, endpoint=False).astype(int)


def norm_figure(
    experiment: Experiment,
    tensors: Sequence[str],
    seed_index: int = 0,
    start: int = 0,
    stop: int | None = None,
) -> Figure | None:
    """Draw the norms of tensors in one seed: a row each, a column a quantity.

    None if they were not logged.
    """
    runs = {m: runs[seed_index] for m, runs in experiment.runs.items()}
    names = [
        name
        for name in QUANTITIES
        if any(np.isfinite(run.tensors[name]).any() for run in runs.values())
    ]
    if not names or not tensors:
        return None
    figure = _figure(2.5 * len(names) + 1, 1.7 * len(tensors) + 0.7)
    panels = figure.subplots(
        len(tensors), len(names), sharex=True, squeeze=False
    )
    colors = method_colors(runs)
    for row, tensor in zip(panels, tensors, strict=True):
        for panel, name in zip(row, names, strict=True):
            for method, run in runs.items():
                if tensor in run.tensor_names:
                    number = run.tensor_names.index(tensor)
                    values = run.tensors[name][start:stop, number]
                    steps = start + np.arange(len(values))
                    line = {"color": colors[method], "label": method}
                    panel.plot(steps, values, lw=0.9, **line)
            set_log_axis(panel)
            _shade_faults(panel, runs.values(), start, stop)
        row[0].set_ylabel(tensor_label(tensor), fontsize=8)
    for panel, name in zip(panels[0], names, strict=True):
        panel.set_title(f"norm of the {QUANTITIES[name]}", fontsize=9)
    _finish(figure, panels[0, 0], panels[-1])
    return figure


def _figure(width: float, height: float) -> Figure:
    with mpl.rc_context({"font.size": 9}):
        return Figure(figsize=(width, height), layout="constrained")


def _shade_faults(
    panel: Axes,
    runs: Iterable[RunRecord],
    start: int = 0,
    stop: int | None = None,
) -> None:
    for first, last in sorted({b for run in runs for b in fault_bursts(run)}):
        if last >= start and (stop is None or first < stop):
            left, right = first - 0.5, last + 0.5
            panel.axvspan(left, right, color="#f4d35e", alpha=0.5, lw=0)


def _finish(
    figure: Figure, with_legend: Axes, last_row: Iterable[Axes]
) -> None:
    with_legend.legend(frameon=False, fontsize=7)
    for panel in last_row:
        panel.set_xlabel("optimizer step")
    for panel in figure.axes:
        panel.grid(color="#dddddd", lw=0.5)
        panel.margins(x=0.01)
