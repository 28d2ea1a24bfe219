# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the text says: seeds and skips above tables, figures, the READMEs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import stats

from paddle_adagc.lab.reproduce.verify.p_values import counts, differences
from paddle_adagc.lab.reproduce.verify.runs import (
    Check,
    Runs,
    StoredRun,
    run_id,
    steps,
)

_EXTENT = re.compile(
    r"(\d+) seeds? \(([\d, ]+)\) of ([\d,]+(?: to [\d,]+)?) steps, the first "
    r"([\d, or]+) not judged(?:; spikes are judged ([^;]+))?; processor"
)
README_ROWS = ("spike_events", "spike_mass", "excess_area", "validation_loss")


def check_extents(
    listed: list[dict[str, Any]], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare what stands above a table: seeds, steps, what is judged."""
    for table in listed:
        page, title = table["page"], table["title"]
        part = pages.get(page, "").partition(f"### {title}\n")[2]
        found = _EXTENT.search(part.partition("\n|")[0])
        shown = [c for keys in table["rows"].values() for c in runs.of(keys)]
        expected = extent(shown)
        seen = [*found.groups()] if found else []
        yield f"{page}, {title}: seeds and steps", seen, expected


def extent(cells: list[StoredRun]) -> list[str | None]:
    """Number of seeds, the seeds, steps, skipped steps, first judged ones."""
    seeds = sorted({c["seed"] for c in cells})
    lengths = [min(map(steps, cells)), max(map(steps, cells))]
    skips = sorted({c["skip"] for c in cells})
    starts = [
        f"from step {' or '.join(f'{n + window:,}' for n in skips)} "
        f"(window {window:,})"
        for window in (1000, 200)
        if any(f"judged_{window}" in c["measures"] for c in cells)
    ]
    return [
        str(len(seeds)),
        ", ".join(map(str, seeds)),
        " to ".join(f"{n:,}" for n in dict.fromkeys(lengths)),
        " or ".join(f"{n:,}" for n in skips),
        ", ".join(starts) or None,
    ]


def check_figures(
    figures: list[dict[str, Any]], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare the rows of the figures, and where their numbers are printed."""
    readmes = [name for name in pages if name.startswith("README")]
    for figure in figures:
        file = f"images/{figure['file']}"
        for row in figure["rows"]:
            place = f"{file}, {row['label']}"
            measure = row["measure"]
            name = measure.replace("spike_events", "events_1000")
            own, reference = runs.of(row["keys"]), runs.of(row["other_keys"])
            pairs = [
                (a, b)
                for a, b in runs.pairs(own, reference, name)
                if measure != "spike_events"
                or all(c["measures"]["judged_1000"] for c in (a, b))
            ]
            yield f"{place}: pairs", row["keys"], [run_id(a) for a, _ in pairs]
            others = [run_id(b) for _, b in pairs]
            yield f"{place}: other pairs", row["other_keys"], others
            value, low, high = limits(measure, pairs)
            stored = [row["value"], row["low"], float(row["high"])]
            yield f"{place}: limits", stored, [value, low, high]
            text = row_text(measure, value, low, high)
            yield f"{place}: text", row["text"], text
            yield f"{place}: drawn", f">{text}<" in pages.get(file, ""), True
            change = change_text(measure, pairs)
            yield f"{place}: change", row["change"], change
            line = f"| {len(pairs)} | {change} | {text} |"
            is_shown = figure["headline"] and measure in README_ROWS
            for readme in readmes if is_shown else ():
                is_there = f"| {row['label']} |" in pages[readme]
                is_right = is_there and line in pages[readme]
                yield f"{readme}, {row['label']}: {line}", is_right, True


def limits(
    measure: str, pairs: list[tuple[StoredRun, StoredRun]]
) -> tuple[float, float, float]:
    """A ratio or a mean difference with its 95% limits."""
    first, second = ([*side] for side in zip(*pairs, strict=True))
    if measure == "spike_events":
        (k1, t1), (k2, t2) = counts(first), counts(second)
        k, n, scale = k1.sum(), k1.sum() + k2.sum(), t2.sum() / t1.sum()
        shares = (
            k / n,
            stats.beta.ppf(0.025, k, n - k + 1) if k else 0.0,
            stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1.0,
        )
        low, middle, high = (
            float(scale * s / (1 - s)) if s < 1 else math.inf
            for s in (shares[1], shares[0], shares[2])
        )
        return middle, low, high
    if measure != "spike_mass":
        return mean_limits(differences(pairs, measure))
    logs = [
        [math.log(max(c["measures"][measure], 0.01)) for c in side]
        for side in (first, second)
    ]
    middle, low, high = mean_limits(np.array(logs[0]) - np.array(logs[1]))
    return math.exp(middle), math.exp(low), math.exp(high)


def mean_limits(d: np.ndarray) -> tuple[float, float, float]:
    """Mean and Student's limits."""
    mean = float(d.mean())
    error = float(d.std(ddof=1)) / math.sqrt(len(d))
    half = float(stats.t.isf(0.025, len(d) - 1)) * error
    return mean, mean - half, mean + half


def row_text(measure: str, value: float, low: float, high: float) -> str:
    """The three numbers as a figure prints them."""
    if measure in ("spike_events", "spike_mass"):
        return f"{value:.2g} ({low:.2g}-{high:.2g})".replace("inf", "∞")
    spec = "+.1f" if "area" in measure else "+.3f"
    return f"{value:{spec}} ({low:{spec}}, {high:{spec}})"


def change_text(measure: str, pairs: list[tuple[StoredRun, StoredRun]]) -> str:
    """The reference's events or mean, then the method's."""
    first, second = ([*side] for side in zip(*pairs, strict=True))
    if measure == "spike_events":
        return f"{counts(second)[0].sum():.0f} → {counts(first)[0].sum():.0f}"
    spec = ".4f" if "loss" in measure else ".3g"
    old, new = (
        math.fsum(c["measures"][measure] for c in side) / len(side)
        for side in (second, first)
    )
    return f"{old:{spec}} → {new:{spec}}"
