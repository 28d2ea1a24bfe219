# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spikes and excess, counted anew from the stored losses."""

from __future__ import annotations

import base64
import bisect
import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from paddle_adagc.lab.reproduce.verify.runs import Check, StoredRun, cpu

MASS_WINDOW = 101


def check_losses(lines: list[StoredRun]) -> Iterator[Check]:
    """Compare the measures that follow from a line's losses and its twin's."""
    series = [cell for cell in lines if cell.get("series")]
    twins = {place(cell): cell for cell in series if cell["twin"]}
    for cell in series:
        clean = None if cell["twin"] else twins.get(place(cell))
        for measure, value in from_series(cell, clean).items():
            name = f"{'/'.join(map(str, place(cell)))} {measure}"
            yield name, cell["measures"].get(measure), value
        stored = cell["stored_mass"]
        if stored is not None:
            name = f"{'/'.join(map(str, place(cell)))} spike_mass"
            yield name, stored, cell["measures"].get("spike_mass")


def derive(lines: list[StoredRun]) -> None:
    """Add the measures that older lines lack: mass, area over GlobalGC."""
    clean = {
        (c["file"], c["experiment"], c["seed"], cpu(c)): c
        for c in lines
        if c["twin"] and c["method"] == "GlobalGC" and c.get("series")
    }
    for cell in lines:
        cell["stored_mass"] = cell["measures"].pop("spike_mass", None)
        if not cell.get("series"):
            continue
        loss = decode(cell["series"]["loss"])
        bad = covered(cell["series"]["left_out"])
        kept = [
            x for i, x in enumerate(loss) if i not in bad and i >= cell["skip"]
        ]
        if cell.get("status") == "diverged" or not np.isfinite(kept).all():
            cell["measures"]["spike_mass"] = math.inf
        elif len(kept) > 2 * MASS_WINDOW:
            cell["measures"]["spike_mass"] = mass(kept)
        key = (cell["file"], cell["experiment"], cell["seed"], cpu(cell))
        if key in clean and cell["series"]["faults"]:
            other = decode(clean[key]["series"]["loss"])
            area = excess(cell, loss, other, bad)["excess_area"]
            cell["measures"]["excess_area_global"] = area or 0.0


def mass(loss: list[float]) -> float:
    """Loss above the running median plus 5 running MAD."""
    size = MASS_WINDOW
    rise = [x - m for x, m in zip(loss[size:], medians(loss), strict=True)]
    spreads = medians([abs(x) for x in rise])
    above = (x - 5 * d for x, d in zip(rise[size:], spreads, strict=True))
    return math.fsum(x for x in above if x > 0)


def medians(values: list[float]) -> list[float]:
    """Median of the window before each value."""
    window, found = sorted(values[:MASS_WINDOW]), []
    for old, new in zip(values, values[MASS_WINDOW:], strict=False):
        found.append(window[MASS_WINDOW // 2])
        window.pop(bisect.bisect_left(window, old))
        bisect.insort(window, new)
    return found


def place(cell: StoredRun) -> tuple[str, str, str, int]:
    """Return what a run shares with its clean twin."""
    return cell["file"], cell["experiment"], cell["method"], cell["seed"]


def from_series(
    cell: StoredRun, clean: StoredRun | None
) -> dict[str, float | None]:
    """Measures that follow from a line's own losses, and its twin's."""
    loss = decode(cell["series"]["loss"])
    bad = covered(cell["series"]["left_out"])
    kept = np.array([i not in bad for i in range(len(loss))])
    skip = int(kept[: cell["skip"]].sum())
    last = np.arange(len(loss)) >= len(loss) - 100
    found: dict[str, float | None] = {
        "final_loss": float(loss[kept & last].mean())
    }
    for window in (1000, 200):
        spikes, num_judged = spike_steps(loss[kept], window, skip)
        if cell.get("status") == "diverged" and not len(spikes):
            names = ("spikes", "events", "judged")
            found |= {f"{name}_{window}": 1 for name in names}
        elif num_judged or len(spikes):
            found |= {
                f"judged_{window}": num_judged,
                f"spikes_{window}": len(spikes),
                f"events_{window}": len(runs_of(spikes, 10)),
                f"score_{window}": 100 * len(spikes) / int(kept.sum()),
            }
    if clean is not None and cell["series"]["faults"]:
        other = decode(clean["series"]["loss"])
        found |= excess(cell, loss, other, bad)
    return found


def decode(packed: dict[str, Any]) -> np.ndarray:
    """Losses of a series, ``[num_steps]``; ValueError if it is damaged."""
    if packed["encoding"] != "log16-delta-zlib-base64":
        raise ValueError(f"unknown encoding {packed['encoding']!r}")
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    half = packed["num_steps"]
    high, low = (np.frombuffer(raw, np.uint8)[i : i + half] for i in (0, half))
    codes = np.cumsum(256 * high.astype(np.int64) + low) % 65_536
    span = packed["high"] - packed["low"]
    loss = np.exp(packed["low"] + codes * (span / 65_533))
    loss[codes == 65_534], loss[codes == 65_535] = np.inf, np.nan
    return loss


def covered(spans: list[list[int]]) -> set[int]:
    """Return steps of pairs of first and last step."""
    return {step for a, b in spans for step in range(a, b + 1)}


def spike_steps(
    loss: np.ndarray, window: int, skip: int
) -> tuple[list[int], int]:
    """Return steps 10 deviations off the window, and how many are judged."""
    steps_ = np.arange(len(loss))
    finite = steps_[np.isfinite(loss) & (steps_ >= skip)]
    spikes = [int(i) for i in steps_[~np.isfinite(loss) & (steps_ >= skip)]]
    if len(finite) > window:
        before = sliding_window_view(loss[finite[:-1]], window)
        distance = abs(loss[finite[window:]] - before.mean(-1))
        far = (distance > 0) & (distance >= 10 * before.std(-1, ddof=1))
        spikes += finite[window:][far].tolist()
    judged = max(0, len(finite) - window) + len(loss) - skip - len(finite)
    return sorted(spikes), max(0, judged) if len(loss) > skip else 0


def runs_of(marked: list[int], gap: int) -> list[list[int]]:
    """Neighbouring steps, at most ``gap`` apart, as lists."""
    groups: list[list[int]] = []
    for step in marked:
        if groups and step - groups[-1][-1] <= gap:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def excess(
    cell: StoredRun, loss: np.ndarray, clean: np.ndarray, bad: set[int]
) -> dict[str, float | None]:
    """Area, largest value and events of the loss over its twin's."""
    size = len(clean) if cell.get("status") == "diverged" else len(loss)
    size = min(size, len(clean))
    padded = np.full(size, np.nan)
    padded[: min(size, len(loss))] = loss[:size]
    start = cell["series"]["faults"][0][0]
    above = np.where(np.isfinite(padded), padded - clean[:size], np.inf)
    judged = [
        i for i in range(start, size) if i not in bad and np.isfinite(clean[i])
    ]
    groups = runs_of([i for i in judged if above[i] > 0.2], 10)
    peaks = [
        max(above[i] for i in judged if g[0] <= i <= g[-1]) for g in groups
    ]
    return {
        "excess_area": float(above[judged].sum()),
        "excess_worst": float(above[judged].max()),
        "events_above_0.2": len(peaks),
        "events_above_0.5": sum(peak > 0.5 for peak in peaks),
    }
