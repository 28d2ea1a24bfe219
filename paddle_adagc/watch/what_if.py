# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What other settings would have done in calm steps and at an event."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddle_adagc.watch.events import Happening
from paddle_adagc.watch.replay import Settings, replay
from paddle_adagc.watch.reading import RecordedRun

DEFAULTS = ("lambda_rel=1.04", "lambda_rel=1.2", "lambda_rel=2", "lambda_rel=4")
OPEN_LOOP = (
    "This is an open loop: under AdaGC the weights, and with them the later "
    "norms, would have been others. For two runs of 600 steps the replay of "
    "GlobalGC's norms was within 0.02 of what AdaGC itself did: the share of "
    "clipped tensors and the median h, over 100 steps each."
)
_NUM_ROWS, _NUM_FIRST = 300, 100
"""Rows that are replayed, and the first of them, in which a rule settles."""


def what_if(
    run: RecordedRun, cases: Sequence[str], event: Happening | None
) -> dict[str, Any]:
    """Replay the rows before an event, or the last ones, under each case.

    Args:
        run: The record.
        cases: ``lambda_rel=1.2,beta=0.98``, arguments of AdaGC.
        event: Its highest step is replayed, too.

    Returns:
        ``rows``: for each case ``case``, ``calm_clipped`` (share of the
        tensors), ``calm_h_median``, and ``event_h_median``, ``event_h_min``;
        the first is what the run's own clip did. ``note`` says what they are.

    Raises:
        ValueError: A case is wrong.
    """
    facts = run.sessions[-1].facts if run.sessions else {}
    base = Settings.of_clip(facts.get("shadow") or facts.get("clip"))
    base = base or Settings()
    base = dataclasses.replace(base, t_start=min(base.t_start, _NUM_FIRST))
    settings = [_settings(case, base) for case in cases]
    steps, is_calm = run.tensor_steps, np.ones(len(run.tensor_steps), bool)
    at = np.zeros(0, int)
    if event is not None:
        is_calm, at = steps < event.first, np.flatnonzero(steps == event.peak)
    calm = np.flatnonzero(is_calm)[-_NUM_ROWS:]
    rows = [_own(run, steps[calm[_NUM_FIRST:]], steps[at])]
    if len(calm) <= _NUM_FIRST:
        note = f"A replay needs more than {_NUM_FIRST} recorded steps, and "
        note += f"there are {len(calm)} before the event, or in all."
        return {"rows": rows, "note": note}
    # The start is not always among the rows.
    gamma = run.tensors("gamma", calm[:1])[0] if calm[0] > 0 else None
    norms = run.tensors("norm", np.append(calm, at))
    for case, its in zip(cases, settings, strict=True):
        h = np.where(norms > 0, replay(norms, its, gamma).h, np.nan)
        calm_h, event_h = h[_NUM_FIRST : len(calm)], h[len(calm) :]
        clipped = np.where(np.isnan(calm_h), np.nan, calm_h < 1)
        rows.append(_row(f"AdaGC {case}", clipped, calm_h, event_h, event_h))
    note = OPEN_LOOP
    if (np.diff(steps[calm]) > 1).any():
        note += (
            " The record has kept only some of the calm steps, so gamma "
            "follows more slowly here."
        )
    return {"rows": rows, "note": note}


def _settings(case: str, base: Settings) -> Settings:
    """Return the run's own settings, changed by a case."""
    found = Settings.of(case, base)
    lambda_rel, beta = found.lambda_rel, found.beta
    if found != dataclasses.replace(base, lambda_rel=lambda_rel, beta=beta):
        raise ValueError(
            f"--what-if {case}: give lambda_rel or beta, which act after "
            "the start; adagc-report replay has the others"
        )
    return found


def _own(run: RecordedRun, calm: np.ndarray, at: np.ndarray) -> dict[str, Any]:
    """Return what the run's own clip did, from the steps' numbers."""
    is_calm, is_event = np.isin(run.step, calm), np.isin(run.step, at)
    h, h_min = run.column("h_median"), run.column("h_min")
    clipped = run.column("clipped_fraction")[is_calm]
    return _row(
        "this run's clip", clipped, h[is_calm], h[is_event], h_min[is_event]
    )


def _row(case: str, *series: np.ndarray) -> dict[str, Any]:
    names = "calm_clipped", "calm_h_median", "event_h_median", "event_h_min"
    measures: tuple[Any, ...] = np.mean, np.median, np.median, np.min
    row: dict[str, Any] = {"case": case}
    for name, measure, values in zip(names, measures, series, strict=True):
        known = values[~np.isnan(values)]
        row[name] = float(measure(known)) if len(known) else math.nan
    return row
