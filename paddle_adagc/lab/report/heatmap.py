# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Heat map tensor x step of h, the scale that the clip gives each gradient."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.labels import (
    TensorGroup,
    group_tensors,
    tensor_label,
)
from paddle_adagc.lab.report.style import INK, method_colors, step_axis, styled

LOWEST = 0.01
"""Smaller values of h have the colour of this one."""

LOW = 0.1
"""Scales below it are counted in the words about the figure."""

MOST_LABELS = 64
"""With more tensors only the groups are labelled."""

NUM_BINS = 300

ALIKE = 1e-3
"""Relative difference up to which tensors count as scaled alike."""


@dataclasses.dataclass(frozen=True)
class _Panel:
    method: str
    h: np.ndarray  # [num_steps, num_rows]
    groups: list[TensorGroup]  # empty: one row for all tensors


def bin_steps(h: np.ndarray, num_bins: int = NUM_BINS) -> np.ndarray:
    """Take the minimum of ``h`` over equal bins of steps.

    Args:
        h: ``[num_steps, num_tensors]``; NaN is ignored where it can be.
        num_bins: Largest number of bins.

    Returns:
        ``[min(num_bins, num_steps), num_tensors]``, NaN where a bin has no
        value.
    """
    edges = np.linspace(0, len(h), min(num_bins, len(h)) + 1).astype(int)[:-1]
    if not len(edges):
        return h
    lowest = np.minimum.reduceat(np.where(np.isnan(h), np.inf, h), edges, 0)
    return np.where(np.isinf(lowest), np.nan, lowest)


def describe_h(run: RunRecord, skip_steps: int) -> str:
    """Say in a sentence how often the clip scaled tensors down strongly.

    The steps are split where the share of values below :data:`LOW` changes
    most.

    Args:
        run: A run that logged its tensors.
        skip_steps: First steps that are not looked at.

    Returns:
        For example ``"From step 1,750 on, 18.0% of the tensor-steps have
        h < 0.1, before it 2.0%; most in layer 0 · attention.q_proj
        (64.0%)."``; empty if no step is left.
    """
    is_low = run.h[skip_steps:] < LOW
    num_steps = len(is_low)
    if not is_low.size:
        return ""
    share = is_low.mean(axis=1)
    what = f"of the tensor-steps have h < {LOW:g}"
    if share.mean() < 0.001:
        return f"Less than 0.1% {what}."
    before = np.cumsum(share)[:-1]
    count = np.arange(1, num_steps)
    after = (share.sum() - before) / (num_steps - count)
    change = count * (num_steps - count) * (after - before / count) ** 2
    margin = max(1, num_steps // 10)
    text = f"{share.mean():.1%} {what}"
    if len(change) > 2 * margin:
        split = margin + int(np.argmax(change[margin:-margin]))
        start = skip_steps + count[split]
        text = (
            f"From step {start:,} on, {after[split]:.1%} {what}, before it "
            f"{before[split] / count[split]:.1%}"
        )
    of_tensor = is_low.mean(axis=0)
    if of_tensor.min() == of_tensor.max():
        return f"{text}, in all tensors alike."
    most = int(np.argmax(of_tensor))
    name = tensor_label(run.tensor_names[most])
    return f"{text}; most in {name} ({of_tensor[most]:.1%})."


def has_tensors(experiment: Experiment, seed_index: int = 0) -> bool:
    """Whether a run of this seed logged the norms of its tensors."""
    return any(
        runs[seed_index].tensor_names and runs[seed_index].num_steps
        for runs in experiment.runs.values()
    )


@styled
def heatmap_figure(
    experiment: Experiment, width: float = 9.0, seed_index: int = 0
) -> Figure:
    """Draw h of every tensor over the whole run, one panel per method.

    A method that scales all tensors alike, such as GlobalGC, gets one row.

    Args:
        experiment: Runs of which at least one logged tensors.
        width: Width of the figure in inches.
        seed_index: Which of the seeds to draw.

    Raises:
        ValueError: No run of this seed logged tensors.
    """
    if not has_tensors(experiment, seed_index):
        raise ValueError(
            f"no run of seed {experiment.seeds[seed_index]} logged tensors: "
            "a heat map needs RunWriter(tensor_names=...)"
        )
    panels = [
        _panel(method, runs[seed_index])
        for method, runs in experiment.runs.items()
        if runs[seed_index].tensor_names and runs[seed_index].num_steps
    ]
    heights = [_panel_height(panel) for panel in panels]
    figure = Figure(
        figsize=(width, max(1.6, sum(heights) + 0.35 * len(panels) + 0.5)),
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
    for ax, panel in zip(grid, panels, strict=True):
        _draw_panel(ax, panel)
        ax.set_title(panel.method, color=colors[panel.method], loc="left")
        step_axis(ax, label=ax is grid[-1])
    _add_color_bar(figure, list(grid))
    return figure


def _add_color_bar(figure: Figure, axes: list[Axes]) -> None:
    bar = figure.colorbar(
        axes[0].images[0],
        ax=axes,
        location="top",
        shrink=0.5 if figure.get_figwidth() > 6 else 0.9,
        aspect=35,
        pad=0.01,
    )
    labels = {1.0: "1 (not clipped)", 0.3: "0.3", 0.1: "0.1", 0.03: "0.03"}
    labels[LOWEST] = f"≤ {LOWEST}"
    bar.set_ticks(list(labels), labels=list(labels.values()))
    bar.minorticks_off()
    bar.outline.set_visible(False)
    bar.set_label("h, lowest of each bin of steps")


def _panel(method: str, run: RunRecord) -> _Panel:
    h = np.clip(run.h.astype(np.float64), 0.0, None)
    # A tensor without a gradient has h = 1 under every method.
    scaled = np.where(run.tensors["norm"] == 0, np.nan, h)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        common = np.nanmedian(scaled, axis=1, keepdims=True)
        off = np.nanmax(np.abs(scaled / common - 1), axis=1)
    # fp32 norms of equally scaled gradients differ in the last digits.
    if (off[np.isfinite(off)] < ALIKE).all():
        return _Panel(method, common, [])
    return _Panel(method, h, group_tensors(run.tensor_names))


def _panel_height(panel: _Panel) -> float:
    """Height in inches: room for a label per tensor, or per group."""
    num_rows = panel.h.shape[1]
    if not panel.groups:
        return 0.22
    if num_rows <= MOST_LABELS:
        return 0.14 * num_rows + 0.1 * len(panel.groups)
    return min(9.0, max(0.05 * num_rows, 0.25 * len(panel.groups)))


def _draw_panel(ax: Axes, panel: _Panel) -> None:
    order = [i for group in panel.groups for i in group.indices]
    binned = bin_steps(panel.h[:, order] if order else panel.h)
    ax.imshow(
        np.clip(binned.T, LOWEST, 1.0),
        aspect="auto",
        interpolation="none",
        cmap=colormaps["magma"].resampled(64),
        norm=LogNorm(LOWEST, 1.0),
        extent=(0, len(panel.h), binned.shape[1] - 0.5, -0.5),
    )
    ax.grid(False)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    if panel.groups:
        _label_rows(ax, panel)
    else:
        ax.set_yticks([0], ["all tensors alike"])


def _label_rows(ax: Axes, panel: _Panel) -> None:
    labels = [label for group in panel.groups for label in group.labels]
    starts = np.cumsum([0] + [len(group.indices) for group in panel.groups])
    for start in starts[1:-1]:
        ax.axhline(start - 0.5, color="white", linewidth=1.6)
    if len(labels) > MOST_LABELS:
        centres = (starts[:-1] + starts[1:] - 1) / 2
        ax.set_yticks(centres, [group.label for group in panel.groups])
        return
    ax.set_yticks(range(len(labels)), labels, fontsize=7)
    for start, group in zip(starts[:-1], panel.groups, strict=True):
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
