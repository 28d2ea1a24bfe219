# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numerical matrix in words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.soak.runs import Trial

MARGIN = 1.0
"""Areas that differ by less, in nat x steps, count as equal."""

_ADAGC, _GLOBALGC = "AdaGC", "GlobalGC"
_CONTROL = "no fault"

Key = tuple[str, ...]


def cells_text(trials: Sequence[Trial]) -> str:
    """Return the matrix' tables; empty without its trials."""
    cells = [trial for trial in trials if trial.kind == "cells"]
    if not cells:
        return ""
    clips = list(dict.fromkeys(trial.values["clip"] for trial in cells))
    faults = _grouped(cells, lambda t: (t.case, t.values["clip"]))
    places = _grouped(
        cells, lambda t: (t.case, t.values["phase"], t.values["clip"])
    )
    worse, better = _compared(
        {key: found for key, found in places.items() if _CONTROL not in key[0]}
    )
    num_cells = sum(_CONTROL not in trial.case for trial in cells)
    num_places = len({k[:2] for k in places if _CONTROL not in k[0]})
    return "\n".join(
        [
            f"{num_cells:,} cells. Median area of the excess loss (nat x steps "
            "from the fault on); in brackets how many cells had not recovered "
            "at the end, or were not finite, if any. Ordered by the largest.\n",
            _table(["Fault"], clips, faults, [*_ordered(faults, clips)]),
            f"Of {num_places} pairs of fault and phase, AdaGC loses less than "
            f"GlobalGC in every seed, by at least {MARGIN:g} nat x step, in "
            f"{len(better)}, and more in {len(worse)}:\n",
            _table(["AdaGC is worse", "Phase"], clips, places, worse),
        ]
    )


def _grouped(
    cells: Iterable[Trial], key: Any
) -> dict[Key, list[tuple[Any, float, str]]]:
    """Sort cells into groups: seed, area (Inf if not finite), outcome."""
    groups: dict[Key, list[tuple[Any, float, str]]] = {}
    for trial in cells:
        area = trial.values["area"]
        found = (
            trial.values["seed"],
            math.inf if area is None else area,
            trial.outcome,
        )
        groups.setdefault(key(trial), []).append(found)
    return groups


def _compared(
    places: dict[Key, list[tuple[Any, float, str]]],
) -> tuple[list[Key], list[Key]]:
    """Return where AdaGC loses more in every seed, worst first; and less."""
    losses: dict[Key, float] = {}
    for fault, phase in dict.fromkeys(key[:2] for key in places):
        pairs = zip(
            sorted(places[fault, phase, _ADAGC]),
            sorted(places[fault, phase, _GLOBALGC]),
            strict=True,
        )
        differences = [_difference(ours, other) for ours, other in pairs]
        low, high = min(differences), max(differences)
        if low > MARGIN or high < -MARGIN:
            losses[fault, phase] = float(np.mean(differences))
    worse = [key for key, loss in losses.items() if loss > 0]
    worse.sort(key=lambda key: -losses[key])
    return worse, [key for key, loss in losses.items() if loss < 0]


def _difference(
    ours: tuple[Any, float, str], other: tuple[Any, float, str]
) -> float:
    if math.isinf(ours[1]) and math.isinf(other[1]):
        return 0.0
    return ours[1] - other[1]


def _ordered(
    groups: dict[Key, list[tuple[Any, float, str]]], clips: Sequence[str]
) -> list[Key]:
    faults = list(dict.fromkeys(key[0] for key in groups))
    worst = {
        fault: max(_median(groups[fault, clip]) for clip in clips)
        for fault in faults
    }
    return [(f,) for f in sorted(faults, key=lambda f: -worst[f])]


def _median(found: Sequence[tuple[Any, float, str]]) -> float:
    return sorted(area for _, area, _ in found)[len(found) // 2]


def _table(
    head: list[str],
    clips: Sequence[str],
    groups: dict[Key, list[tuple[Any, float, str]]],
    keys: Sequence[Key],
) -> str:
    rows = []
    for key in keys:
        places = [(*key, clip) for clip in clips]
        rows.append([*key, *(_text(groups[place]) for place in places)])
    return markdown_table([*head, *clips], rows, left=len(head))


def _text(found: Sequence[tuple[Any, float, str]]) -> str:
    area = _median(found)
    number = "not finite" if math.isinf(area) else f"{area + 0.0:,.1f}"
    lost = sum(outcome != "recovered" for _, _, outcome in found)
    number = "0.0" if number == "-0.0" else number
    return f"{number} ({lost} of {len(found)})" if lost else number
