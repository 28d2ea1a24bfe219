# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The pictures of single tensors: norms, moments, the heat map of h.

After the paper's optimizer-dynamics figures, they show what the clip lets
through, and how long the optimizer remembers it.
"""

from __future__ import annotations

import inspect
import warnings

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple

from adagc_lab.extensions import PRESETS
from adagc_lab.record.files import RunRecord
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.focus import (
    Focus,
    TensorGroup,
    fault_bursts,
    group_tensors,
    tensor_label,
)
from adagc_lab.report.judged import model_loss
from adagc_lab.report.style import (
    INK,
    NEUTRAL,
    mark_faults,
    method_colors,
    step_axis,
    styled,
)
from paddle_adagc.clips.adagc import ClipGradByAdaGC

_DASHES = (0, (4, 4))

LOWEST = 0.01
"""Smaller values of h have the colour of this one."""

MOST_LABELS = 64
"""With more tensors only the groups are labelled."""

NUM_BINS = 300
WIDTH = 9.0
"""Inches."""

ALIKE = 1e-3
"""Relative difference up to which tensors count as scaled by one factor."""


def clip_threshold(run: RunRecord) -> np.ndarray | None:
    """Return AdaGC's threshold, NaN in the warm-up; None: another clip."""
    clip = dict(run.run.get("config", {}).get("clip", {}))
    known = inspect.signature(ClipGradByAdaGC).parameters
    # An argument that is gone (docs/tried-rules.md) makes it another clip.
    if clip.pop("name", None) != "adagc" or (
        clip.pop("preset", "paper") not in PRESETS or not {*clip} <= {*known}
    ):
        return None
    lambda_rel, t_start = (
        float(clip.get(name, known[name].default))
        for name in ("lambda_rel", "t_start")
    )
    gamma = run.tensors["gamma"]
    threshold = np.full_like(gamma, np.nan)
    threshold[1:] = lambda_rel * gamma[:-1]
    threshold[: int(t_start)] = np.nan
    return threshold


@styled
def norm_figure(experiment: Experiment, focus: Focus) -> Figure:
    """Draw loss and norms around an event, one column per method."""
    methods = list(experiment.runs)
    rows = 1 + len(focus.tensors)
    figure = Figure(
        figsize=(max(WIDTH, 2.0 * len(methods)), 0.9 + 1.55 * rows),
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
        loss = _finite(model_loss(run)[steps])
        grid[0, column].plot(steps, loss, color=colors[method], linewidth=1.2)
        for ax, tensor in zip(grid[1:, column], focus.tensors, strict=True):
            if tensor in run.tensor_names:
                _draw_norms(ax, run, tensor, steps, colors[method])
    grid[0, 0].set_ylabel("training loss\n(nat)")
    for ax, tensor in zip(grid[1:, 0], focus.tensors, strict=True):
        label = tensor_label(tensor).replace(" · ", "\n")
        ax.set_ylabel(label.replace(".", "\n"))
        if any((np.asarray(x.get_ydata()) > 0).any() for x in ax.lines):
            ax.set_yscale("log")
    runs = [runs[focus.seed_index] for runs in experiment.runs.values()]
    bursts = sorted({burst for run in runs for burst in fault_bursts(run)})
    for ax in grid.flat:
        mark_faults(ax, bursts, focus.start, focus.stop)
        inches = figure.get_figwidth() / len(methods)
        step_axis(ax, label=False, num_ticks=3 if inches < 3 else 5)
        ax.set_xlim(focus.start, focus.stop)
    figure.supxlabel("optimizer step", fontsize=9)
    legend: dict[str, list[Artist]] = {}
    for ax in grid[1]:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            legend.setdefault(label, []).append(handle)
    figure.legend(
        handles=[tuple(handles) for handles in legend.values()],
        labels=[*legend],
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        loc="outside upper center",
        ncols=4,
    )
    return figure


def _draw_norms(
    ax: Axes, run: RunRecord, tensor: str, steps: np.ndarray, color: str
) -> None:
    index = run.tensor_names.index(tensor)
    before = _finite(run.tensors["norm"][steps, index])
    after = _finite(run.tensors["clipped_norm"][steps, index])
    label = "gradient norm before clip"
    ax.plot(steps, before, color=NEUTRAL, linewidth=1.4, label=label)
    ax.plot(steps, after, color=color, linewidth=2.0, label="after clip")
    threshold = clip_threshold(run)
    if threshold is not None:
        label = "AdaGC threshold $\\lambda_{rel}\\,\\gamma$"
        bound = _finite(threshold[steps, index])
        (line,) = ax.plot(steps, bound, color=INK, linewidth=1.0, label=label)
        line.set_linestyle(_DASHES)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def bin_steps(h: np.ndarray) -> np.ndarray:
    """Take the minimum over equal bins of steps, ``[bins, tensors]``."""
    edges = np.linspace(0, len(h), min(NUM_BINS, len(h)) + 1).astype(int)[:-1]
    if not len(edges):
        return h
    lowest = np.minimum.reduceat(np.where(np.isnan(h), np.inf, h), edges, 0)
    return np.where(np.isinf(lowest), np.nan, lowest)


def runs_with_tensors(
    experiment: Experiment, seed_index: int
) -> dict[str, RunRecord]:
    """The runs of a seed that logged the norms of their tensors, by method."""
    return {
        method: runs[seed_index]
        for method, runs in experiment.runs.items()
        if runs[seed_index].tensor_names and runs[seed_index].num_steps
    }


@styled
def heatmap_figure(experiment: Experiment, seed_index: int = 0) -> Figure:
    """Draw h of every tensor over the whole run, one panel per method."""
    runs = runs_with_tensors(experiment, seed_index)
    panels = {method: _panel(run) for method, run in runs.items()}
    heights = [_panel_height(*panel) for panel in panels.values()]
    figure = Figure(
        figsize=(WIDTH, max(1.6, sum(heights) + 0.35 * len(panels) + 0.5)),
        layout="constrained",
    )
    grid = figure.subplots(
        len(panels),
        1,
        squeeze=False,
        sharex=True,
        gridspec_kw={"height_ratios": heights},
    )[:, 0]
    colors = method_colors(experiment.runs)
    for ax, (method, panel) in zip(grid, panels.items(), strict=True):
        _draw_panel(ax, *panel)
        ax.set_title(method, color=colors[method], loc="left")
        step_axis(ax, label=ax is grid[-1])
    _add_color_bar(figure, list(grid))
    return figure


def _add_color_bar(figure: Figure, axes: list[Axes]) -> None:
    bar = figure.colorbar(
        axes[0].images[0],
        ax=axes,
        location="top",
        shrink=0.5,
        aspect=35,
        pad=0.01,
    )
    labels = ["1 (not clipped)", "0.3", "0.1", "0.03", f"≤ {LOWEST}"]
    bar.set_ticks([1.0, 0.3, 0.1, 0.03, LOWEST], labels=labels)
    bar.minorticks_off()
    bar.outline.set_visible(False)
    bar.set_label("h, lowest of each bin of steps")


def _panel(run: RunRecord) -> tuple[np.ndarray, list[TensorGroup]]:
    """Return h, ``[num_steps, num_rows]``; no groups: one row for all."""
    h = np.clip(run.h.astype(np.float64), 0.0, None)
    # A tensor without a gradient has h = 1 under every method.
    scaled = np.where(run.tensors["norm"] == 0, np.nan, h)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        common = np.nanmedian(scaled, axis=1, keepdims=True)
        off = np.nanmax(np.abs(scaled / common - 1), axis=1)
    # fp32 norms of equally scaled gradients differ in the last digits.
    if (off[np.isfinite(off)] < ALIKE).all():
        return common, []
    return h, group_tensors(run.tensor_names)


def _panel_height(h: np.ndarray, groups: list[TensorGroup]) -> float:
    """Height in inches: room for a label per tensor, or per group."""
    num_rows = h.shape[1]
    if not groups:
        return 0.22
    if num_rows <= MOST_LABELS:
        return 0.14 * num_rows + 0.1 * len(groups)
    return min(9.0, max(0.05 * num_rows, 0.25 * len(groups)))


def _draw_panel(ax: Axes, h: np.ndarray, groups: list[TensorGroup]) -> None:
    order = [i for group in groups for i in group.indices]
    binned = bin_steps(h[:, order] if order else h)
    ax.imshow(
        np.clip(binned.T, LOWEST, 1.0),
        aspect="auto",
        interpolation="none",
        cmap=colormaps["magma"].resampled(64),
        norm=LogNorm(LOWEST, 1.0),
        extent=(0, len(h), binned.shape[1] - 0.5, -0.5),
    )
    ax.grid(False)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    if groups:
        _label_rows(ax, groups)
    else:
        ax.set_yticks([0], ["all tensors alike"])


def _label_rows(ax: Axes, groups: list[TensorGroup]) -> None:
    labels = [label for group in groups for label in group.labels]
    starts = np.cumsum([0] + [len(group.indices) for group in groups])
    for start in starts[1:-1]:
        ax.axhline(start - 0.5, color="white", linewidth=1.6)
    if len(labels) > MOST_LABELS:
        centres = (starts[:-1] + starts[1:] - 1) / 2
        ax.set_yticks(centres, [group.label for group in groups])
        return
    ax.set_yticks(range(len(labels)), labels, fontsize=7)
    for start, group in zip(starts[:-1], groups, strict=True):
        if len(group.indices) > 1:
            middle = start + (len(group.indices) - 1) / 2
            ax.text(
                1.008,
                middle,
                group.label,
                transform=ax.get_yaxis_transform(),
                rotation=90,
                ha="left",
                va="center",
                fontsize=8,
                color=INK,
            )
