# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What AdaGC would have done: in a record, or with norms of any trainer.

NumPy alone.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.watch.events import Happening
from paddle_adagc.watch.reading import RecordedRun
from paddle_adagc.watch.replay import Settings, replay
from paddle_adagc.watch.text import table
from paddle_adagc.watch.verdict import clip_of

DEFAULTS = ("lambda_rel=1.04", "lambda_rel=1.2", "lambda_rel=2", "lambda_rel=4")
_COLUMNS = (
    "A gradient is multiplied by h; clipped means h < 1. Before are up to "
    "200 steps before the event, or the last ones; event is its highest step. "
)
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

    The event's highest step is replayed, too. A case is a text such as
    ``lambda_rel=1.2,beta=0.98``.

    Returns:
        ``rows``: for each case ``case``, ``calm_clipped`` (share of the
        tensors), ``calm_h_median``, and ``event_h_median``, ``event_h_min``;
        the first is what the run's own clip did. ``note`` says what they are.

    Raises:
        ValueError: A case is wrong.
    """
    facts = run.facts(math.inf if event is None else event.first)
    base = Settings.of_clip(facts.get("shadow") or facts.get("clip"))
    settings = [_settings(case, base or Settings()) for case in cases]
    steps, is_calm = run.tensor_steps, np.ones(len(run.tensor_steps), bool)
    at = np.zeros(0, int)
    if event is not None:
        is_calm, at = steps < event.first, np.flatnonzero(steps == event.peak)
        if np.isinf(run.tensors("norm", at)).any():  # no setting helps
            at = at[:0]
    calm = np.flatnonzero(is_calm)[-_NUM_ROWS:]
    rows = [_own(run, steps[calm[_NUM_FIRST:]], steps[at])]
    if len(calm) <= _NUM_FIRST:
        note = f"A replay needs more than {_NUM_FIRST} recorded steps, and "
        note += f"there are {len(calm)} before the event, or in all."
        return {"rows": rows, "note": note}
    gamma = None
    if calm[0] > 0:  # the start is not among the rows
        gamma = run.tensors("gamma", calm[:1])[0]
    places = np.append(calm, at)
    # The clip's own count, if it began with the run.
    norms, since = run.tensors("norm", places), steps[places] - 1
    for case, its in zip(cases, settings, strict=True):
        if gamma is None:
            its = dataclasses.replace(its, t_start=min(its.t_start, _NUM_FIRST))
        h = replay(norms, its, gamma, since).h
        h = np.where(norms > 0, h, np.nan)
        calm_h, event_h = h[_NUM_FIRST : len(calm)], h[len(calm) :]
        clipped = np.where(np.isnan(calm_h), np.nan, calm_h < 1)
        rows.append(_row(f"AdaGC {case}", clipped, calm_h, event_h, event_h))
    note = _COLUMNS + OPEN_LOOP
    if "overrides" in clip_of(run):
        note += " The overrides of the run's clip are not followed."
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


_FORMS = "step, tensor, norm; or step, and a column for each tensor"
_NUM_SHOWN = 8


def read_norms(path: Path) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Read norms before the clip, a value per step and tensor.

    The columns are step, tensor and norm; or step and one for each tensor, as
    W&B writes them, whose ``__MIN`` and ``__MAX`` columns are left out.

    Returns:
        Steps, names, and norms ``[num_steps, num_tensors]``; NaN where missing.

    Raises:
        ValueError: The file has no such columns, or a value is no number.
    """
    found: dict[int, dict[str, float]] = {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        head = [name.strip() for name in reader.fieldnames or ()]
        head = ["step" if name == "Step" else name for name in head]
        reader.fieldnames = head
        ends = "__MIN", "__MAX"
        names = [x for x in head if x != "step" and not x.endswith(ends)]
        try:
            if "step" not in head:
                raise ValueError("no column is named step")
            for cells in reader:
                row = {name: cells[name] for name in names}
                if {"tensor", "norm"} <= row.keys():
                    row = {row["tensor"]: row["norm"]}
                known = {n: float(x) for n, x in row.items() if x}
                known = {n: x if x == x else math.inf for n, x in known.items()}
                if known:
                    found.setdefault(int(cells["step"] or ""), {}).update(known)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {reader.line_num}: {error}; the columns are "
                f"{', '.join(head)[:200]}, and have to be {_FORMS}"
            ) from None
    names = [*dict.fromkeys(name for row in found.values() for name in row)]
    if not names:
        raise ValueError(f"{path} has no norms of tensors")
    steps = sorted(found)
    norms = [[found[i].get(name, math.nan) for name in names] for i in steps]
    return np.array(steps), names, np.array(norms)


def replay_lines(
    steps: np.ndarray, names: list[str], norms: np.ndarray, settings: Settings
) -> list[str]:
    """Say what AdaGC would have done with these norms."""
    start = min(settings.t_start, len(steps))
    first, last = steps[0], steps[-1]
    lines = [f"{len(steps)} steps ({first} to {last}), {len(names)} tensors"]
    if start:
        finite = np.where(np.isfinite(norms[:start]), norms[:start], 0.0)
        total = np.sqrt((finite**2).sum(1))
        cut = float(np.mean(total > settings.lambda_abs))
        lines.append(
            f"start, {start} steps: in {cut:.0%} of them the global norm "
            f"(median {np.median(total):.3g}) is above lambda_abs "
            f"{settings.lambda_abs:g}, and AdaGC cuts it to that"
        )
    h = replay(norms, settings).h
    h = np.where(norms > 0, h, np.nan)[start:]
    if np.isnan(h).all():
        return [*lines, "no norms after the start: there is no more to tell"]
    clipped = np.mean(h[~np.isnan(h)] < 1)
    lines.append(
        f"then: AdaGC clips {clipped:.0%} of the tensors; median h "
        f"{np.nanmedian(h):.3g}"
    )
    lines += ["", *_lowest(steps[start:], names, norms[start:], h), ""]
    if (np.diff(steps) > 1).any():
        lines.append("Some steps are missing: gamma follows more slowly here.")
    return [*lines, OPEN_LOOP]


def _lowest(
    steps: np.ndarray, names: list[str], norms: np.ndarray, h: np.ndarray
) -> list[str]:
    """Tabulate the tensors that would be cut most, each at its worst step."""
    filled = np.where(np.isnan(h), np.inf, h)
    lowest, at = filled.min(0), filled.argmin(0)
    clipped = (h < 1).sum(0) / np.maximum((~np.isnan(h)).sum(0), 1)
    rows = [
        {
            "tensor": names[i],
            "most at step": int(steps[at[i]]),
            "norm": float(norms[at[i], i]),
            "h": float(lowest[i]),
            "clipped": f"{clipped[i]:.0%}",
        }
        for i in np.argsort(lowest, kind="stable")[:_NUM_SHOWN].tolist()
        if lowest[i] < 1
    ]
    if not rows:
        return ["no tensor would be clipped"]
    return table({name: name for name in rows[0]}, rows)
