# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Figures of two studies of one seed, from ``creep.jsonl``, ``price.jsonl``.

A line of these files is a run, with a number for each 50 (creep) or 100 (price)
steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from adagc_lab.report.figures import method_colors, set_log_axis

_QUANTITIES = {
    "loss": "loss (nat)",
    "norm": "global norm,\nbefore the clip",
    "h": "median h",
    "second_moment": "√Σv, Adam's\nsecond moment",
    "update": "norm of\nthe update",
}
_FIRST = 200
"""Steps that the figures leave out."""

Lines = Mapping[str, tuple[np.ndarray, Sequence[float]]]
"""Steps and values of a run, by its name."""


def study_figures(results: Path) -> dict[str, Callable[[], Figure]]:
    """Return what draws each figure, by the name of its image."""
    return {
        "creep-course": lambda: _course(_read(results / "creep.jsonl")),
        "creep-causes": lambda: _causes(_read(results / "creep.jsonl")),
        "price-mixtral": lambda: _price(results, "Mixtral"),
        "price-ernie": lambda: _price(results, "ERNIE"),
    }


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _course(runs: Sequence[dict[str, Any]]) -> Figure:
    chosen = {run["run"]: run for run in runs[:3]}
    skipped = _FIRST // 50
    return _stacked(
        {
            label: {
                name: (50 * np.arange(skipped, 80), run[key][skipped:])
                for name, run in chosen.items()
            }
            for key, label in _QUANTITIES.items()
        },
        logarithmic=True,
    )


def _causes(runs: Sequence[dict[str, Any]]) -> Figure:
    adagc = {
        key: values[60:]
        for key, values in runs[1].items()
        if key in _QUANTITIES
    }
    chosen = {"AdaGC, unchanged": adagc, **{r["run"]: r for r in runs[3:6]}}
    return _stacked(
        {
            label: {
                name: (3000 + 50 * np.arange(20), run[key])
                for name, run in chosen.items()
            }
            for key, label in _QUANTITIES.items()
            if key != "h"
        },
        logarithmic=True,
    )


def _price(results: Path, recipe: str) -> Figure:
    runs = {
        run["clip"]: run
        for run in _read(results / "price.jsonl")
        if run["recipe"] == recipe
    }
    reference = runs.pop("GlobalGC")
    skipped = _FIRST // 100
    steps = 100 * np.arange(skipped, len(reference["mean_loss"]))
    panels = {
        "loss over\nGlobalGC's (nat)": {
            clip: np.subtract(run["mean_loss"], reference["mean_loss"])
            for clip, run in runs.items()
        }
    }
    for group in ("routed experts", "others"):
        panels[f"gamma / mean norm,\n{group}"] = {
            clip: np.array(run[group]["gamma"]) for clip, run in runs.items()
        }
    return _stacked(
        {
            label: {clip: (steps, y[skipped:]) for clip, y in by.items()}
            for label, by in panels.items()
        },
        logarithmic=False,
    )


def _stacked(panels: Mapping[str, Lines], *, logarithmic: bool) -> Figure:
    """Draw panels over one another, with one legend."""
    height = 1.5 * len(panels) + 0.6
    figure = Figure(figsize=(7.5, height), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True)
    colors = method_colors(next(iter(panels.values())))
    for panel, (label, lines) in zip(axes, panels.items(), strict=True):
        for name, (steps, values) in lines.items():
            panel.plot(steps, values, color=colors[name], lw=1, label=name)
        if logarithmic:
            set_log_axis(panel)
        panel.set_ylabel(label, fontsize=8)
        panel.grid(color="#dddddd", lw=0.5)
        panel.margins(x=0.01)
    axes[-1].set_xlabel("optimizer step")
    lines, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        lines, labels, loc="outside upper center", ncols=4, frameon=False
    )
    return figure
