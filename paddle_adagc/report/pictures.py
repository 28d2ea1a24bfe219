# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A record's curves and heat map, as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paddle_adagc.record.files import RecordedRun
from paddle_adagc.record.judge import layer_of, medians
from paddle_adagc.report.page import heat_groups

_NUM_POINTS = 600
_NUM_COLUMNS = 96  # of the heat map
_NUM_PAST_COLUMNS = 12
_MAX_ROWS = 4000
_CURVES = (
    "loss",
    "global_grad_norm",
    "clipped_grad_norm",
    "clipped_fraction",
    "h_median",
    "shadow_clipped_fraction",
    "shadow_h_median",
    "learning_rate",
)


def curves(run: RecordedRun, events: Sequence[dict[str, Any]]) -> Any:
    """Return series with the lowest and highest value of each bin."""
    num_bins = min(_NUM_POINTS, max(len(run.step), 1))
    edges = np.unique(np.linspace(0, len(run.step), num_bins + 1).astype(int))
    starts = edges[:-1]
    found: dict[str, Any] = {"step": run.step[starts].tolist()}
    for name in _CURVES:
        values = run.column(name)
        if np.isnan(values).all():
            continue
        low = np.where(np.isfinite(values), values, np.inf)
        high = np.where(np.isfinite(values), values, -np.inf)
        found[name] = {
            "low": np.minimum.reduceat(low, starts).tolist(),
            "high": np.maximum.reduceat(high, starts).tolist(),
        }
    found["marks"] = [[e["start"], e["end"]] for e in events]
    return found


def heat(run: RecordedRun) -> dict[str, Any]:
    """Return the largest norm over usual norm, by tensor and bin of steps.

    A character for each: ``0`` (usual) to ``9`` (22 times or more) in steps of
    a factor of 1.41, ``x`` for Inf or NaN, a blank for nothing known.
    """
    places = np.arange(len(run.tensor_steps))
    if len(places) > _MAX_ROWS:
        worst = [alarm["worst_step"] for alarm in run.alarms]
        places = np.union1d(
            np.linspace(0, len(places) - 1, _MAX_ROWS).astype(int),
            np.flatnonzero(np.isin(run.tensor_steps, worst)),
        )
    if not len(places):
        return {"steps": [], "groups": []}
    steps = run.tensor_steps[places]
    norms = run.tensors("norm", places)
    parts = np.array_split(
        np.arange(len(places)), min(_NUM_COLUMNS, len(places))
    )
    past_medians: list[np.ndarray] = []
    levels = np.full((len(run.keys), len(parts)), np.nan)
    for column, part in enumerate(parts):
        known = np.where(norms[part] > 0, norms[part], np.nan)
        finite = np.where(np.isfinite(known), known, np.nan)
        with np.errstate(all="ignore"):
            past = np.stack(
                past_medians[-_NUM_PAST_COLUMNS:] or [medians(finite)]
            )
            ratio = _largest(finite) / medians(past)
            level = np.clip(np.round(2 * np.log2(ratio)), 0, 9)
        is_nonfinite = np.isinf(norms[part]).any(0)
        levels[:, column] = np.where(is_nonfinite, np.inf, level)
        past_medians.append(medians(finite))
    return {
        "steps": [int(steps[part[0]]) for part in parts],
        "groups": heat_groups(levels, run.keys, map(layer_of, run.keys)),
    }


def _largest(table: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(table), -np.inf, table).max(0)
