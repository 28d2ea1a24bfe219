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
"""Loss curves of the methods of an experiment, one panel per seed."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.fault_marks import fault_legend, mark_faults
from paddle_adagc.lab.report.jumps import model_loss
from paddle_adagc.lab.report.measures import spike_steps
from paddle_adagc.lab.report.style import (
    NEUTRAL,
    log_axis,
    method_colors,
    step_axis,
    styled,
)

NOISY = 0.05
"""A long curve whose typical change from step to step is more than this
fraction of its range is smoothed."""


@styled
def loss_figure(
    experiment: Experiment, width: float = 9.0, log_y: bool | None = None
) -> Figure:
    """Draw every method's training loss, with faults and spikes marked.

    Args:
        experiment: The runs; one panel per seed, methods overlaid.
        width: Width of the figure in inches.
        log_y: Logarithmic loss axis; ``None`` takes it if the loss falls to
            less than an eighth of its start.
    """
    num_seeds = len(experiment.seeds)
    height = 3.3 if num_seeds == 1 else 0.7 + 2.0 * num_seeds
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(
        num_seeds, 1, squeeze=False, sharex=True, sharey=True
    )
    methods = list(experiment.runs)
    colors = method_colors(methods)
    if log_y is None:
        log_y = _falls_far(experiment)
    for index, ax in enumerate(grid[:, 0]):
        for method in [*methods[2:], *methods[:2]]:
            run = experiment.runs[method][index]
            _draw_run(ax, run, colors[method], experiment, log_y)
        seed_runs = [runs[index] for runs in experiment.runs.values()]
        longest = max(run.num_steps for run in seed_runs)
        mark_faults(ax, seed_runs, 0, longest)
        ax.set_ylabel("training loss (nat)")
        if num_seeds > 1:
            ax.set_title(f"seed {experiment.seeds[index]}", loc="left")
        step_axis(ax, label=index == num_seeds - 1)
        ax.margins(x=0.01)
    if log_y:
        log_axis(grid[0, 0])
    figure.legend(
        handles=_legend(experiment, colors),
        loc="outside upper center",
        ncols=3 if width < 6 else 6,
    )
    return figure


def is_noisy(values: np.ndarray) -> bool:
    """Whether a series is long and noisy enough to be smoothed.

    Args:
        values: ``[num_steps]``; values that are not finite are left out.
    """
    known = values[np.isfinite(values)]
    if len(known) < 1000:
        return False
    low, high = np.percentile(known, [5, 95])
    return bool(np.median(np.abs(np.diff(known))) > NOISY * (high - low))


def smooth(values: np.ndarray) -> np.ndarray:
    """Return the mean of the last half percent of the steps, at least 5.

    Args:
        values: ``[num_steps]``; values that are not finite leave gaps.
    """
    ok = np.isfinite(values)
    length = max(5, len(values) // 200)
    total = np.cumsum(np.where(ok, values, 0.0))
    count = np.cumsum(ok)
    total[length:] -= total[:-length].copy()
    count[length:] -= count[:-length].copy()
    return np.where(ok, total / np.maximum(count, 1), np.nan)


def _falls_far(experiment: Experiment) -> bool:
    losses = np.concatenate(
        [run.loss for runs in experiment.runs.values() for run in runs]
    )
    losses = losses[np.isfinite(losses)]
    return len(losses) > 0 and bool(
        losses.min() > 0 and losses.max() > 8 * losses.min()
    )


def _draw_run(
    ax: Axes, run: RunRecord, color: str, experiment: Experiment, log_y: bool
) -> None:
    loss = model_loss(run)
    loss[~np.isfinite(loss)] = np.nan
    steps = np.arange(run.num_steps)
    scaled = np.log(loss) if log_y else loss
    if is_noisy(scaled):
        smoothed = np.exp(smooth(scaled)) if log_y else smooth(loss)
        ax.plot(steps, loss, color=color, linewidth=0.7, alpha=0.4)
        ax.plot(steps, smoothed, color=color, linewidth=1.4)
    else:
        ax.plot(steps, loss, color=color, linewidth=1.0)
    spikes = spike_steps(run, experiment.skip_steps, experiment.windows[0])
    spikes = spikes[np.isfinite(loss[spikes])]
    ax.scatter(
        spikes,
        loss[spikes],
        s=26,
        facecolors="none",
        edgecolors=color,
        linewidths=1.1,
        zorder=4,
    )
    finite = np.flatnonzero(np.isfinite(loss))
    if len(finite) and not np.isfinite(run.loss).all():
        last = finite[-1]
        ax.plot(last, loss[last], "X", color=color, markersize=8, zorder=5)


def _legend(
    experiment: Experiment, colors: dict[str, str]
) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=color, linewidth=2, label=method)
        for method, color in colors.items()
    ]
    handles.append(
        Line2D(
            [],
            [],
            linestyle="none",
            marker="o",
            markerfacecolor="none",
            markeredgecolor=NEUTRAL,
            label="spike",
        )
    )
    if experiment.has_faults:
        handles.append(fault_legend())
    all_runs = [run for runs in experiment.runs.values() for run in runs]
    if not all(np.isfinite(run.loss).all() for run in all_runs):
        handles.append(
            Line2D(
                [],
                [],
                linestyle="none",
                marker="X",
                color=NEUTRAL,
                markersize=8,
                label="last finite loss",
            )
        )
    return handles
