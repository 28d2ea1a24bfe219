# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The figures of the pages: their data from ``results/``, and their drawing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from adagc_lab.report.differences import difference
from adagc_lab.report.figures import COLORS, set_log_axis
from adagc_lab.reproduce.rates import one_run_a_cell, rate_cells
from adagc_lab.reproduce.studies import study_figures
from adagc_lab.reproduce.tables import Recipes

_BIN = 10
"""Steps of which a curve shows the largest loss."""


def figure_data(
    rows: pd.DataFrame, recipes_file: Path
) -> dict[str, pd.DataFrame]:
    """Return the data of every figure, rounded as its file has them."""
    recipes = Recipes(rows, recipes_file)
    return {name: make(recipes) for name, (make, _) in _FIGURES.items()}


def image_makers(data: Path, results: Path) -> dict[str, Callable[[], Figure]]:
    """Return what draws each image; ``data`` holds :func:`figure_data`."""

    def draw(name: str) -> Figure:
        return _FIGURES[name][1](pd.read_csv(data / f"{name}.csv"))

    makers = {name: functools.partial(draw, name) for name in _FIGURES}
    return {**makers, **study_figures(results)}


def _curves(recipes: Recipes) -> pd.DataFrame:
    """Losses of five seeds of the Llama proxy under three clips."""
    pairs = recipes.of_target("extension-compared-methods", "low-noise-llama")
    columns = {}
    for method in ("GlobalGC 1", "GlobalGC 0.1", "AdaGC"):
        for (seed, *_), row in [*pairs.runs(method, 2500).items()][:5]:
            starts = np.arange(0, len(row["loss"]), _BIN)
            largest = np.maximum.reduceat(row["loss"], starts)
            columns[f"{method}, seed {seed}"] = np.round(largest, 3)
    data = pd.DataFrame(columns)
    data.insert(0, "step", np.arange(len(data)) * _BIN)
    return data


def _price(recipes: Recipes) -> pd.DataFrame:
    """Validation loss over GlobalGC 1's of the calm recipes, with limits."""
    lines = []
    for recipe, pairs in recipes.situations["calm"].items():
        for steps in pairs.lengths():
            for method in ("GlobalGC 0.1", "AdaGC", "warmup_ema"):
                gains = pairs.differences(method, steps, "validation_loss")
                found = difference(gains)
                if found and found.number >= 4:
                    numbers = [round(round(x, 9), 4) for x in found[:3]]
                    label = f"{recipe}, {steps:,} steps"
                    lines.append([label, method, *numbers, found.number])
    head = ["recipe", "method", "mean", "low", "high", "seeds"]
    return pd.DataFrame(lines, columns=head)


def _rates(recipes: Recipes) -> pd.DataFrame:
    """Mean loss over all seeds, by method, beta2 and rate."""
    cells = one_run_a_cell(rate_cells(recipes.rows, ["rates"]))
    groups = cells.groupby(["method", "beta2", "rate"], sort=False)
    means, counts = groups["loss"].mean().round(9).round(3), groups.size()
    return means[counts == counts.max()].reset_index()


def _draw_curves(data: pd.DataFrame) -> Figure:
    methods = ["GlobalGC 1", "GlobalGC 0.1", "AdaGC"]
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for panel, method in zip(panels, methods, strict=True):
        for name in data.columns[1:]:
            if name.startswith(f"{method}, "):
                color = COLORS[method]
                panel.plot(data["step"], data[name], color=color, lw=0.6)
        panel.set(title=method, xlabel="step")
        set_log_axis(panel)
    panels[0].set_ylabel("largest training loss\nof 10 steps (nat)")
    return figure


def _draw_price(data: pd.DataFrame) -> Figure:
    labels = [*dict.fromkeys(data["recipe"])]
    height = 0.4 * len(labels) + 0.8
    figure = Figure(figsize=(7, height), layout="constrained")
    panel = figure.subplots()
    for shift, method in enumerate(("GlobalGC 0.1", "AdaGC", "warmup_ema")):
        own = data[data["method"] == method]
        places = [labels.index(x) + 0.2 * (shift - 1) for x in own["recipe"]]
        spread = [own["mean"] - own["low"], own["high"] - own["mean"]]
        style: dict[str, Any] = {"fmt": "o", "color": COLORS[method]}
        panel.errorbar(
            own["mean"], places, xerr=spread, label=method, ms=3, **style
        )
    panel.axvline(0, color="grey", lw=0.8)
    panel.set_yticks(range(len(labels)), labels)
    panel.invert_yaxis()
    panel.set_xlabel("validation loss minus GlobalGC 1's (nat)")
    panel.legend(frameon=False)
    return figure


def _draw_rates(data: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(9, 3), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, beta2 in zip(panels, (0.95, 0.999), strict=True):
        own = data[data["beta2"].astype(float) == beta2]
        for method in dict.fromkeys(data["method"]):
            part = own[own["method"] == method].sort_values("rate")
            style = {"marker": "o", "color": COLORS[method], "label": method}
            panel.plot(part["rate"], part["loss"], ms=3, **style)
        panel.set(title=f"beta2 {beta2:g}", xlabel="learning rate")
        set_log_axis(panel, "x")
        set_log_axis(panel, "y")
        rates = sorted({*own["rate"]})
        panel.set_xticks(rates, [f"{rate:g}" for rate in rates])
        panel.xaxis.set_minor_locator(NullLocator())
    panels[0].set_ylabel("loss of the last 500 steps (nat)")
    panels[0].legend(frameon=False)
    return figure


_FIGURES = {
    "llama-spikes": (_curves, _draw_curves),
    "calm-price": (_price, _draw_price),
    "loss-over-rate": (_rates, _draw_rates),
}
"""Name of each figure -> what makes its data, and what draws it."""
