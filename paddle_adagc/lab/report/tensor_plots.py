# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms of single tensors: around an event, and over a whole run.

After the paper's optimizer-dynamics figures: what the clip lets through, and
how long the optimizer remembers it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from paddle_adagc.checks import check_choice
from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.report.config_facts import adagc_option
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.focus import Focus, fault_bursts
from paddle_adagc.lab.report.judged import model_loss
from paddle_adagc.lab.report.labels import tensor_label
from paddle_adagc.lab.report.style import (
    INK,
    NEUTRAL,
    fault_legend,
    log_axis,
    mark_faults,
    method_colors,
    step_axis,
    styled,
)

THRESHOLD_DASHES = (0, (4, 4))
COLUMNS = {
    "norm": "gradient",
    "clipped_norm": "clipped gradient",
    "moment1": "first moment",
    "moment2": "second moment",
}
GLOBAL = "all gradients"


def clip_threshold(run: RunRecord) -> np.ndarray | None:
    """Return the norm above which AdaGC clips each tensor at each step.

    Algorithm 1: ``lambda_rel * gamma`` with the gamma of the step before.

    Returns:
        ``[num_steps, num_tensors]`` float32, NaN in the warm-up and where the
        tensor has no gamma; ``None`` if the run used another clip.
    """
    config = run.run.get("config", {})
    lambda_rel = adagc_option(config, "lambda_rel")
    t_start = adagc_option(config, "t_start")
    if lambda_rel is None or t_start is None:
        return None
    gamma = run.tensors["gamma"]
    threshold = np.full_like(gamma, np.nan)
    threshold[1:] = lambda_rel * gamma[:-1]
    threshold[: int(t_start)] = np.nan
    return threshold


@styled
def norm_figure(
    experiment: Experiment, focus: Focus, width: float = 9.0
) -> Figure:
    """Draw the gradient norms around an event, one column per method.

    The first row is the loss; the others show one tensor each: its norm before
    and after the clip and, under AdaGC, the threshold ``lambda_rel * gamma``.
    """
    methods = list(experiment.runs)
    rows = 1 + len(focus.tensors)
    figure = Figure(
        figsize=(max(width, 2.0 * len(methods)), 0.9 + 1.55 * rows),
        layout="constrained",
    )
    grid = figure.subplots(
        rows, len(methods), squeeze=False, sharex=True, sharey="row"
    )
    colors = method_colors(methods)
    for column, method in enumerate(methods):
        run = experiment.runs[method][focus.seed_index]
        steps = np.arange(focus.start, min(focus.stop, run.num_steps))
        grid[0, column].set_title(method, color=colors[method])
        grid[0, column].plot(
            steps,
            _finite(model_loss(run)[steps]),
            color=colors[method],
            linewidth=1.2,
        )
        for ax, tensor in zip(grid[1:, column], focus.tensors, strict=True):
            if tensor in run.tensor_names:
                _draw_norms(ax, run, tensor, steps, colors[method])
    grid[0, 0].set_ylabel("training loss\n(nat)")
    for ax, tensor in zip(grid[1:, 0], focus.tensors, strict=True):
        ax.set_ylabel(_wrapped(tensor))
        _log_if_positive(ax)
    _finish(figure, grid, experiment, focus)
    _norm_legend(figure, experiment, focus, list(colors.values()))
    return figure


@styled
def dynamics_figure(
    experiment: Experiment, tensor: str, width: float = 9.0
) -> Figure:
    """Draw the norms of one tensor in the first seed of every method.

    Args:
        experiment: Runs that recorded their tensors.
        tensor: Name of the tensor.
        width: Width of the figure in inches; it takes at least 8.

    Raises:
        ValueError: A run did not record ``tensor``.
    """
    runs = {method: runs[0] for method, runs in experiment.runs.items()}
    for run in runs.values():
        check_choice(f"tensor of {run.name}", tensor, run.tensor_names)
    titles = [*COLUMNS.values(), GLOBAL]
    figure = Figure(
        figsize=(max(width, 8.0), 0.9 + 1.5 * len(runs)), layout="constrained"
    )
    grid = figure.subplots(
        len(runs), len(titles), squeeze=False, sharex=True, sharey="col"
    )
    colors = method_colors(runs)
    for row, (method, run) in zip(grid, runs.items(), strict=True):
        for ax, values in zip(row, _series(run, tensor), strict=True):
            known = np.where(values > 0, values, np.nan)
            ax.plot(known, color=colors[method], linewidth=0.8)
            if np.isfinite(known).any():
                log_axis(ax)
            loss = ax.twinx()
            loss.plot(model_loss(run), color=INK, linewidth=0.6)
            loss.set_yticks([])
            loss.grid(False)
            step_axis(ax, label=False, num_ticks=3)
        row[0].set_ylabel(method, color=colors[method])
    for ax, title in zip(grid[0], titles, strict=True):
        ax.set_title(title)
    figure.suptitle(f"{tensor_label(tensor)}: norms (black: loss)", fontsize=9)
    figure.supxlabel("optimizer step", fontsize=9)
    return figure


def _series(run: RunRecord, tensor: str) -> list[np.ndarray]:
    """Return the norms by column, ``[num_steps]`` each; NaN: not recorded."""
    index = run.tensor_names.index(tensor)
    unknown = np.full(run.num_steps, np.nan)
    return [
        *(run.tensors[quantity][:, index] for quantity in COLUMNS),
        run.metrics.get("global_grad_norm", unknown),
    ]


def _norm_legend(
    figure: Figure, experiment: Experiment, focus: Focus, colors: list[str]
) -> None:
    after = tuple(Line2D([], [], color=c, linewidth=1.4) for c in colors)
    handles: dict[str, Any] = {
        "gradient norm before clip": Line2D(
            [], [], color=NEUTRAL, linewidth=1.4
        ),
        "after clip": after,
        "AdaGC threshold $\\lambda_{rel}\\,\\gamma$": Line2D(
            [], [], color=INK, linewidth=1.0, linestyle=THRESHOLD_DASHES
        ),
    }
    for patch in _fault_handles(experiment, focus):
        handles[str(patch.get_label())] = patch
    figure.legend(
        handles=list(handles.values()),
        labels=list(handles),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        loc="outside upper center",
        ncols=2 if figure.get_figwidth() < 6 else 4,
    )


def _fault_handles(experiment: Experiment, focus: Focus) -> list[Patch]:
    shown = any(
        focus.start <= step < focus.stop
        for runs in experiment.runs.values()
        for step in runs[focus.seed_index].faults
    )
    return [fault_legend()] if shown else []


def _draw_norms(
    ax: Axes, run: RunRecord, tensor: str, steps: np.ndarray, color: str
) -> None:
    index = run.tensor_names.index(tensor)
    before = _finite(run.tensors["norm"][steps, index])
    after = _finite(run.tensors["clipped_norm"][steps, index])
    ax.plot(steps, before, color=NEUTRAL, linewidth=1.4)
    ax.plot(steps, after, color=color, linewidth=2.0)
    threshold = clip_threshold(run)
    if threshold is not None:
        ax.plot(
            steps,
            _finite(threshold[steps, index]),
            color=INK,
            linewidth=1.0,
            linestyle=THRESHOLD_DASHES,
        )


def _finish(
    figure: Figure, grid: Any, experiment: Experiment, focus: Focus
) -> None:
    """Mark the faults, and label the shared step axis."""
    runs = [runs[focus.seed_index] for runs in experiment.runs.values()]
    bursts = sorted({burst for run in runs for burst in fault_bursts(run)})
    for ax in grid.flat:
        mark_faults(ax, bursts, focus.start, focus.stop)
        inches = figure.get_figwidth() / grid.shape[1]
        step_axis(ax, label=False, num_ticks=3 if inches < 3 else 5)
        ax.set_xlim(focus.start, focus.stop)
    figure.supxlabel("optimizer step", fontsize=9)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def _log_if_positive(ax: Axes) -> None:
    values = np.concatenate(
        [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines]
        or [np.zeros(0)]
    )
    if (values > 0).any():
        log_axis(ax)


def _wrapped(tensor: str) -> str:
    """Break a tensor's label into short lines."""
    return tensor_label(tensor).replace(" · ", "\n").replace(".", "\n")
