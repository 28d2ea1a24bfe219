# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Curves over steps, one per method: the mean over seeds with its band.

A :class:`Chart` is data alone. The page draws it so that it can be zoomed,
:func:`~paddle_adagc.lab.report.plots.draw_chart` draws it for the docs.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.focus import Focus, fault_bursts
from paddle_adagc.lab.report.judged import (
    memorises,
    model_loss,
    run_excess,
    spike_steps,
)
from paddle_adagc.lab.report.labels import tensor_label
from paddle_adagc.lab.report.style import method_colors

NOISY = 0.05
"""A long curve whose typical change from step to step is more than this
fraction of its range is smoothed."""

DIGITS = 5
"""Significant digits of the values in the page."""

SPIKE, END = "spike", "last finite loss"
Marks = tuple[tuple[int, float, str], ...]

_METRICS: tuple[tuple[str, str, float, bool], ...] = (
    ("global_grad_norm", "Global gradient norm", 1.0, True),
    ("clipped_fraction", "Tensors clipped (%)", 100.0, False),
    ("eval_loss", "Validation loss (nat)", 1.0, False),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """The curve of one method."""

    label: str
    color: str
    values: np.ndarray
    """Mean over seeds, smoothed if it is noisy: ``[num_steps]``, NaN where
    there is no value."""

    low: np.ndarray | None = None
    high: np.ndarray | None = None
    """Least and largest value of the seeds, ``[num_steps]``; None: one seed."""

    raw: np.ndarray | None = None
    """One seed's values before smoothing, ``[num_steps]``."""

    marks: Marks = ()
    """Step, value, and :data:`SPIKE` or :data:`END`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves in the same axes."""

    label: str
    """What the y axis shows, with the unit in parentheses."""

    lines: list[Line]
    start: int = 0
    """Step of the first value."""

    log: bool = False
    """Logarithmic y axis."""

    faults: tuple[tuple[int, int], ...] = ()
    """First and last step of each burst of injected faults."""

    def as_json(self) -> dict[str, Any]:
        """Return the chart for the page; NaN becomes ``null``."""
        return {
            "label": self.label,
            "start": self.start,
            "log": self.log,
            "faults": self.faults,
            "lines": [
                {
                    "label": line.label,
                    "color": line.color,
                    "marks": [(s, _rounded(v)) for s, v, _ in line.marks],
                    **{
                        name: [_rounded(v) for v in series.tolist()]
                        for name in ("values", "low", "high", "raw")
                        if (series := getattr(line, name)) is not None
                    },
                }
                for line in self.lines
            ],
        }


def all_charts(experiment: Experiment) -> Iterator[Chart]:
    """Yield the charts that an experiment has data for, the loss first."""
    yield loss_chart(experiment)
    for name, *_ in _METRICS:
        chart = metric_chart(experiment, name)
        if chart is not None:
            yield chart
    excess = excess_chart(experiment)
    if excess is not None:
        yield excess


def loss_chart(experiment: Experiment) -> Chart:
    """Chart the training loss with its spikes, without corrupted batches."""
    marks = {
        method: tuple(mark for run in runs for mark in _marks(run, experiment))
        for method, runs in experiment.runs.items()
    }
    series = {
        method: [model_loss(run) for run in runs]
        for method, runs in experiment.runs.items()
    }
    return make_chart(
        "Training loss (nat)",
        series,
        log=_falls_far(series),
        marks=marks,
        **_common(experiment),
    )


def excess_chart(experiment: Experiment) -> Chart | None:
    """Chart the loss above that of the same run without faults, if any."""
    series = {}
    for method, clean in (experiment.clean_runs or {}).items():
        pairs = zip(experiment.runs[method], clean, strict=True)
        found = [run_excess(run, other) for run, other in pairs]
        known = [excess.excess for excess in found if excess is not None]
        if known:
            series[method] = known
    if not series:
        return None
    return make_chart("Paired excess (nat)", series, **_common(experiment))


def metric_chart(experiment: Experiment, name: str) -> Chart | None:
    """Chart a logged metric; None if no run logged it.

    Args:
        experiment: The runs.
        name: ``"global_grad_norm"``, ``"clipped_fraction"`` or
            ``"eval_loss"``; the latter is not shown for memorised data.
    """
    _, label, factor, log = next(m for m in _METRICS if m[0] == name)
    series = {
        method: [
            factor * run.metrics[name]
            for run in runs
            if name in run.metrics
            and not (name == "eval_loss" and memorises(run))
        ]
        for method, runs in experiment.runs.items()
    }
    series = {
        method: known
        for method, known in series.items()
        if any(np.isfinite(values).any() for values in known)
    }
    if not series:
        return None
    return make_chart(label, series, log=log, **_common(experiment))


def moment_charts(experiment: Experiment, focus: Focus) -> list[Chart]:
    """Chart the moments of the tensors that were hit, around the event."""
    runs = {m: r[focus.seed_index] for m, r in experiment.runs.items()}
    found = []
    for tensor in focus.tensors:
        for quantity, what in (("moment1", "first"), ("moment2", "second")):
            series = {
                method: [
                    run.tensors[quantity][
                        focus.start : focus.stop, run.tensor_names.index(tensor)
                    ]
                ]
                for method, run in runs.items()
                if tensor in run.tensor_names
            }
            if any(np.isfinite(v).any() for (v,) in series.values()):
                label = f"{tensor_label(tensor)}: {what} moment"
                common = _common(experiment)
                chart = make_chart(label, series, log=True, **common)
                found.append(dataclasses.replace(chart, start=focus.start))
    return found


def make_chart(
    label: str,
    series: Mapping[str, Sequence[np.ndarray]],
    *,
    log: bool = False,
    colors: Mapping[str, str] | None = None,
    faults: tuple[tuple[int, int], ...] = (),
    marks: Mapping[str, Marks] | None = None,
) -> Chart:
    """Make a chart with a line per method.

    Args:
        label: What is shown, with the unit in parentheses.
        series: By method, one ``[num_steps]`` per seed; they may differ in
            length.
        log: Logarithmic y axis.
        colors: By method; None takes those of the methods of ``series``.
        faults: First and last step of each burst of injected faults.
        marks: By method, its spikes and ends.
    """
    length = max(len(values) for known in series.values() for values in known)
    colors = colors or method_colors(series)
    lines = [
        dataclasses.replace(
            _line(method, colors[method], known, length, log),
            marks=(marks or {}).get(method, ()),
        )
        for method, known in series.items()
    ]
    return Chart(label=label, lines=lines, log=log, faults=faults)


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


def _common(experiment: Experiment) -> dict[str, Any]:
    """Return what all charts of an experiment share."""
    bursts = {
        burst
        for runs in experiment.runs.values()
        for run in runs
        for burst in fault_bursts(run)
    }
    colors = method_colors(experiment.runs)
    return {"colors": colors, "faults": tuple(sorted(bursts))}


def _line(
    label: str,
    color: str,
    series: Sequence[np.ndarray],
    length: int,
    log: bool,
) -> Line:
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
    shown = mean
    if noisy:
        shown = np.exp(smooth(np.log(mean))) if log else smooth(mean)
    several = len(series) > 1
    return Line(
        label=label,
        color=color,
        values=shown,
        low=low if several else None,
        high=high if several else None,
        raw=mean if noisy and not several else None,
    )


def _falls_far(series: dict[str, list[np.ndarray]]) -> bool:
    """Whether the loss falls to less than an eighth of its start."""
    known = np.concatenate([v for runs in series.values() for v in runs])
    known = known[np.isfinite(known)]
    return bool(
        len(known) and known.min() > 0 and known.max() > 8 * known.min()
    )


def _marks(
    run: RunRecord, experiment: Experiment
) -> Iterator[tuple[int, float, str]]:
    loss = run.loss
    spikes = spike_steps(run, experiment.skip_steps, experiment.windows[0])
    for step in spikes[np.isfinite(loss[spikes])].tolist():
        yield step, float(loss[step]), SPIKE
    finite = np.flatnonzero(np.isfinite(loss))
    if len(finite) and len(finite) < len(loss):
        yield int(finite[-1]), float(loss[finite[-1]]), END


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None
