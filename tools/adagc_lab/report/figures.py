# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Single tensors: norms around an event, the heat map of h.

After the paper's optimizer-dynamics figures, they show what the clip lets
through.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from typing import Any

import numpy as np

from adagc_lab.record.files import RunRecord
from adagc_lab.report.drawings import Chart, Line, method_colors, value_range
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.focus import Focus, fault_bursts, tensor_label
from adagc_lab.report.judged import model_loss
from paddle_adagc.checks import matching_pattern
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.watch.page import heat_groups
from paddle_adagc.watch.tensors import layer_of

LOWEST = 0.01
"""Smaller values of h have the color of this one."""

NUM_BINS = 300
ALIKE = 1e-3
"""Relative difference up to which tensors count as scaled by one factor."""


def clip_threshold(run: RunRecord) -> np.ndarray | None:
    """Return AdaGC's threshold, NaN in the warm-up; None: another clip."""
    clip = dict(run.run.get("config", {}).get("clip", {}))
    known = inspect.signature(ClipGradByAdaGC).parameters
    # An argument that is gone (docs/tried-rules.md) makes it another clip.
    if clip.pop("name", None) != "adagc" or not {*clip} <= {*known}:
        return None
    values = {n: clip.get(n, p.default) for n, p in known.items()}
    overrides = values["overrides"] or {}
    found = [
        overrides.get(matching_pattern("overrides", overrides, name), {})
        for name in run.tensor_names
    ]
    lambda_rel = [own.get("lambda_rel", values["lambda_rel"]) for own in found]
    gamma = run.tensors["gamma"]
    threshold = np.full_like(gamma, np.nan)
    threshold[1:] = np.array(lambda_rel, "f4") * gamma[:-1]
    threshold[: int(values["t_start"])] = np.nan
    return threshold


def norm_charts(experiment: Experiment, focus: Focus) -> list[list[Chart]]:
    """Chart loss and norms around an event: a column per method.

    A row has the same y axis.
    """
    runs = {m: runs[focus.seed_index] for m, runs in experiment.runs.items()}
    spans = sorted({b for run in runs.values() for b in fault_bursts(run)})
    colors = method_colors(runs)

    def chart(method: str, tensor: str | None) -> Chart:
        steps = slice(focus.start, focus.stop)
        run, color = runs[method], colors[method]
        what = tensor_label(tensor) if tensor else "training loss (nat)"
        lines = [Line(label=method, color=color, values=model_loss(run)[steps])]
        if tensor:
            lines = _norm_lines(run, tensor, steps, method, color)
        return Chart(
            label=f"{method}: {what}",
            lines=lines,
            start=focus.start,
            log=tensor is not None,
            spans=tuple(spans),
        )

    rows = []
    for tensor in (None, *focus.tensors):
        row = [
            chart(method, tensor)
            for method, run in runs.items()
            if tensor is None or tensor in run.tensor_names
        ]
        limits = value_range(row)
        rows.append([dataclasses.replace(c, range=limits) for c in row])
    return rows


def _norm_lines(
    run: RunRecord, tensor: str, steps: slice, method: str, color: str
) -> list[Line]:
    place = steps, run.tensor_names.index(tensor)
    norm, clipped = run.tensors["norm"], run.tensors["clipped_norm"]
    lines = [
        Line(label="before the clip", color="--grey", values=norm[place]),
        Line(label=f"after {method}", color=color, values=clipped[place]),
    ]
    threshold = clip_threshold(run)
    if threshold is not None:
        lines.append(
            Line(
                label="AdaGC's threshold",
                color="--ink",
                values=threshold[place],
                dashed=True,
            )
        )
    return lines


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


def heat_maps(
    experiment: Experiment, seed_index: int = 0
) -> dict[str, dict[str, Any]]:
    """Return h of every tensor over the whole run, by method, for the page.

    A level is 0 for h = 1 and 9 for :data:`LOWEST`, in logarithmic steps.
    """
    return {
        method: _heat_map(run)
        for method, run in runs_with_tensors(experiment, seed_index).items()
    }


def _heat_map(run: RunRecord) -> dict[str, Any]:
    h = np.clip(run.h.astype(np.float64), 0.0, None)
    # A tensor without a gradient has h = 1 under every method.
    scaled = np.where(run.tensors["norm"] == 0, np.nan, h)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        common = np.nanmedian(scaled, axis=1, keepdims=True)
        off = np.nanmax(np.abs(scaled / common - 1), axis=1)
    names = run.tensor_names
    groups = [layer_of(name) for name in names]
    # fp32 norms of equally scaled gradients differ in the last digits.
    if (off[np.isfinite(off)] < ALIKE).all():
        h, names = common, ["all tensors alike"]
        groups = names
    binned = bin_steps(h)
    with np.errstate(invalid="ignore"):
        shown = np.clip(binned, LOWEST, 1.0)
        levels = np.abs(np.round(9 * np.log(shown) / np.log(LOWEST)))
    steps = np.linspace(0, len(h), len(binned) + 1).astype(int)[:-1]
    return {
        "steps": steps.tolist(),
        "groups": heat_groups(levels.T, names, groups),
    }
