# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Curves over steps, one per method: the mean over seeds with its band."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from adagc_lab.report.drawings import Chart, Line, method_colors
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.focus import fault_bursts, tensor_label
from adagc_lab.report.judged import (
    JudgedRun,
    judge_runs,
    judged_steps,
    memorises,
    model_loss,
)

NOISY = 0.05
"""A long curve whose typical change from step to step is more than this
fraction of its range is smoothed."""

_METRICS = {
    "global_grad_norm": ("Global gradient norm", 1.0, True),
    "clipped_fraction": ("Tensors clipped (%)", 100.0, False),
    "eval_loss": ("Validation loss (nat)", 1.0, False),
}
"""Logged metric -> label, factor, whether its axis is logarithmic."""

QUANTITIES = {
    "norm": "gradient",
    "clipped_norm": "clipped gradient",
    "moment1": "first moment",
    "moment2": "second moment",
}
"""Logged quantity of a tensor -> what a chart calls its norm."""


def all_charts(experiment: Experiment) -> list[Chart]:
    """The charts that an experiment has data for, the loss first."""
    found = [
        loss_chart(experiment),
        *(metric_chart(experiment, name) for name in _METRICS),
        excess_chart(experiment),
    ]
    return [chart for chart in found if chart is not None]


def loss_chart(experiment: Experiment) -> Chart | None:
    """Chart the training loss with its spikes, without corrupted batches."""
    series = {
        method: [model_loss(run) for run in runs]
        for method, runs in experiment.runs.items()
    }
    marks = {
        method: tuple(mark for run in runs for mark in _marks(run))
        for method, runs in judge_runs(experiment).items()
    }
    label, is_log = "Training loss (nat)", _falls_far(series)
    return _chart(experiment, label, series, log=is_log, marks=marks)


def excess_chart(experiment: Experiment) -> Chart | None:
    """Chart the loss above that of the same run without faults, if any."""
    series = {
        method: [run.excess.excess for run in runs if run.excess is not None]
        for method, runs in judge_runs(experiment).items()
    }
    return _chart(experiment, "Paired excess (nat)", series)


def metric_chart(experiment: Experiment, name: str) -> Chart | None:
    """Chart a metric of ``_METRICS``; None if no run logged it."""
    label, factor, log = _METRICS[name]
    series = {
        method: [
            factor * run.metrics[name]
            for run in runs
            if name in run.metrics
            and not (name == "eval_loss" and memorises(run))
        ]
        for method, runs in experiment.runs.items()
    }
    return _chart(experiment, label, series, log=log)


def tensor_charts(
    experiment: Experiment,
    tensors: Iterable[str],
    quantities: Iterable[str],
    seed_index: int = 0,
    start: int = 0,
    stop: int | None = None,
) -> Iterator[Chart]:
    """Chart norms of tensors in one seed, a chart per quantity."""
    runs = {m: runs[seed_index] for m, runs in experiment.runs.items()}
    for tensor, quantity in itertools.product(tensors, quantities):
        series = {
            method: [run.tensors[quantity][start:stop, names.index(tensor)]]
            for method, run in runs.items()
            if tensor in (names := run.tensor_names)
        }
        label = f"{tensor_label(tensor)}: {QUANTITIES[quantity]}"
        chart = _chart(experiment, label, series, log=True, start=start)
        if chart is not None:
            yield chart


def _chart(
    experiment: Experiment,
    label: str,
    series: Mapping[str, Sequence[np.ndarray]],
    *,
    log: bool = False,
    start: int = 0,
    marks: Mapping[str, tuple[tuple[int, float], ...]] | None = None,
) -> Chart | None:
    """Make a chart of one ``[num_steps]`` per seed; None without a value.

    Methods without a value have no line.
    """
    known = {
        method: runs
        for method, runs in series.items()
        if any(np.isfinite(values).any() for values in runs)
    }
    if not known:
        return None
    length = max(len(values) for runs in known.values() for values in runs)
    colors = method_colors(experiment.runs)
    every = itertools.chain(*experiment.runs.values())
    bursts = {burst for run in every for burst in fault_bursts(run)}
    return Chart(
        label=label,
        lines=[
            Line(
                label=method,
                color=colors[method],
                marks=(marks or {}).get(method, ()),
                **_curve(runs, length, log),
            )
            for method, runs in known.items()
        ],
        start=start,
        log=log,
        spans=tuple(sorted(bursts)),
    )


def is_noisy(values: np.ndarray) -> bool:
    """Whether a series is long and noisy enough to be smoothed."""
    known = values[np.isfinite(values)]
    if len(known) < 1000:
        return False
    low, high = np.percentile(known, [5, 95])
    return bool(np.median(np.abs(np.diff(known))) > NOISY * (high - low))


def smooth(values: np.ndarray) -> np.ndarray:
    """Return the mean of the last half percent of the steps, at least 5."""
    ok = np.isfinite(values)
    length = max(5, len(values) // 200)
    total = np.cumsum(np.where(ok, values, 0.0))
    count = np.cumsum(ok)
    total[length:] -= total[:-length].copy()
    count[length:] -= count[:-length].copy()
    return np.where(ok, total / np.maximum(count, 1), np.nan)


def _curve(
    series: Sequence[np.ndarray], length: int, log: bool
) -> dict[str, Any]:
    """Return the arrays of a line."""
    seeds = np.full((len(series), length), np.nan)
    for row, values in zip(seeds, series, strict=True):
        row[: len(values)] = np.where(np.isfinite(values), values, np.nan)
    if log:
        seeds[seeds <= 0] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # steps without values
        mean = np.nanmean(seeds, axis=0)
        low, high = np.nanmin(seeds, axis=0), np.nanmax(seeds, axis=0)
    noisy = is_noisy(np.log(mean) if log else mean)
    curve = {"values": mean}
    if noisy:
        shown = np.exp(smooth(np.log(mean))) if log else smooth(mean)
        curve = {"values": shown, "raw": mean}
    if len(series) > 1:
        curve = {"values": curve["values"], "low": low, "high": high}
    return curve


def _falls_far(series: dict[str, list[np.ndarray]]) -> bool:
    """Whether the loss falls to less than an eighth of its start."""
    known = np.concatenate([v for runs in series.values() for v in runs])
    known = known[np.isfinite(known)]
    return bool(
        len(known) and known.min() > 0 and known.max() > 8 * known.min()
    )


def _marks(judged: JudgedRun) -> Iterator[tuple[int, float]]:
    loss = judged.run.loss
    score = judged.score(judged.experiment.windows[0])
    for step in judged_steps(judged.run, 0)[score.indices] if score else ():
        if np.isfinite(loss[step]):
            yield int(step), float(loss[step])
    finite = np.flatnonzero(np.isfinite(loss))
    if len(finite) and len(finite) < len(loss):
        yield int(finite[-1]), float(loss[finite[-1]])
