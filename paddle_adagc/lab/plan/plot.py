# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip's communication over the size of the cluster, as a figure."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullLocator

from paddle_adagc.lab.plan.dry_run import ADAGC, ADAGC_WARM_UP, GLOBAL_GC
from paddle_adagc.lab.plan.plan import Plan
from paddle_adagc.lab.report.style import FIXED_COLORS, styled, thousands

_LINES = {
    GLOBAL_GC: {"color": FIXED_COLORS["GlobalGC"], "marker": "o"},
    ADAGC_WARM_UP: {
        "color": FIXED_COLORS["AdaGC"],
        "marker": "s",
        "linestyle": "--",
    },
    ADAGC: {"color": FIXED_COLORS["AdaGC"], "marker": "s"},
}
_LINEAR_US = 10.0
"""Below this the time axis is linear, so that 0 has a place."""


@styled
def save_growth(plan: Plan, directory: Path) -> list[Path]:
    """Draw the time per step with trees and with rings, as SVG and PNG."""
    sizes = [*plan.growth]
    figure, axes = plt.subplots(
        1, 2, figsize=(8.0, 3.2), sharey=True, layout="constrained"
    )
    for ax, algorithm in zip(axes, ("tree", "ring"), strict=True):
        for step, style in _LINES.items():
            times = [
                getattr(cost, f"{algorithm}_us")
                for costs in plan.growth.values()
                for cost in costs
                if cost.step == step
            ]
            ax.plot(sizes, times, label=step, markersize=4, **style)
        ax.set_xscale("log", base=2)
        ax.set_yscale("symlog", linthresh=_LINEAR_US)
        ax.set_xticks(sizes[::2])
        ax.xaxis.set_major_formatter(FuncFormatter(thousands))
        ax.yaxis.set_major_formatter(FuncFormatter(thousands))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_title(f"{algorithm}s")
        ax.set_xlabel("GPUs")
    axes[0].set_ylim(bottom=-0.5)  # both: they share it
    axes[0].set_ylabel("clip's communication\n(µs per step)")
    axes[0].legend()
    directory.mkdir(parents=True, exist_ok=True)
    files = [
        directory / f"clip_communication.{kind}" for kind in ("svg", "png")
    ]
    for file in files:
        figure.savefig(file, dpi=200)
    plt.close(figure)
    return files
