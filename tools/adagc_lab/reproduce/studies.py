# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Figures of two studies of one seed, from ``creep.jsonl``, ``price.jsonl``.

A line of the files is a run, with a number per 50 (creep) or 100 (price) steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
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

Lines = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Steps and values of a run, by its name."""


def study_figures(results: Path) -> dict[str, Callable[[], Figure]]:
    """Return what draws each figure, by the name of its image."""
    return {
        "creep-course": lambda: _course(results),
        "creep-causes": lambda: _causes(results),
        "price-mixtral": lambda: _price(results, "Mixtral"),
        "price-ernie": lambda: _price(results, "ERNIE"),
    }


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _course(results: Path) -> Figure:
    runs = _read(results / "creep.jsonl")[:3]
    return _creep({run["run"]: run for run in runs}, _FIRST, _QUANTITIES)


def _causes(results: Path) -> Figure:
    """Draw AdaGC's run from step 3,000 on, and those forked from it there."""
    runs = _read(results / "creep.jsonl")
    chosen = {"AdaGC, unchanged": runs[1]}
    chosen |= {run["run"]: run for run in runs[3:6]}
    return _creep(chosen, 3000, [key for key in _QUANTITIES if key != "h"])


def _creep(
    runs: Mapping[str, dict[str, Any]], start: int, quantities: Iterable[str]
) -> Figure:
    """Draw quantities of runs by name, from a step on."""

    def line(run: dict[str, Any], key: str) -> tuple[np.ndarray, np.ndarray]:
        steps = run["first_step"] + 50 * np.arange(len(run[key]))
        return steps[steps >= start], np.array(run[key])[steps >= start]

    panels = {
        _QUANTITIES[key]: {name: line(run, key) for name, run in runs.items()}
        for key in quantities
    }
    return _stacked(panels, logarithmic=True)


def _price(results: Path, recipe: str) -> Figure:
    runs = {
        run["clip"]: run
        for run in _read(results / "price.jsonl")
        if run["recipe"] == recipe
    }
    reference = runs.pop("GlobalGC")
    steps = 100 * np.arange(len(reference["mean_loss"]))
    series = {
        "loss over\nGlobalGC's (nat)": {
            clip: np.subtract(run["mean_loss"], reference["mean_loss"])
            for clip, run in runs.items()
        }
    }
    for group in ("routed experts", "others"):
        series[f"gamma / mean norm,\n{group}"] = {
            clip: np.array(run[group]["gamma"]) for clip, run in runs.items()
        }
    shown = steps >= _FIRST
    panels = {
        label: {clip: (steps[shown], y[shown]) for clip, y in by.items()}
        for label, by in series.items()
    }
    return _stacked(panels, logarithmic=False)


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
