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
"""What the optimizer is given and what it remembers, over a whole run.

After the paper's optimizer-dynamics figures: a row per method, a column per
norm of one tensor, the training loss in black over all of them.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from paddle_adagc.checks import check_choice
from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.jumps import model_loss
from paddle_adagc.lab.report.labels import tensor_label
from paddle_adagc.lab.report.style import (
    INK,
    log_axis,
    method_colors,
    step_axis,
    styled,
)

COLUMNS = {
    "norm": "gradient",
    "clipped_norm": "clipped gradient",
    "moment1": "first moment",
    "moment2": "second moment",
}
GLOBAL = "all gradients"


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
    """Norms by column, ``[num_steps]`` each; NaN where not recorded."""
    index = run.tensor_names.index(tensor)
    unknown = np.full(run.num_steps, np.nan)
    return [
        *(run.tensors[quantity][:, index] for quantity in COLUMNS),
        run.metrics.get("global_grad_norm", unknown),
    ]
