# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses over the learning rate; the smallest h."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from adagc_lab.markdown import markdown_table
from adagc_lab.report.differences import difference, fixed, shown
from adagc_lab.report.measures import END, measure
from adagc_lab.reproduce.pairs import REFERENCE

NOT_RUN = "Too few seeds have run yet.\n"
_BASIN = 0.02
"""Nat above a method's best loss within which a rate is in its basin."""

_PAIR = ["seed", "processor"]
_NAME = r"^(.+?)(?:, beta2 ([\d.]+))?, rate ([\d.]+)$"


def rate_cells(rows: pd.DataFrame, experiments: Sequence[str]) -> pd.DataFrame:
    """Loss of the last 500 steps by method, beta2, rate, seed and processor."""
    own = rows.query("target == 'rates' and experiment in @experiments")
    parts = own["method"].str.extract(_NAME)
    return pd.DataFrame(
        {
            "method": parts[0],
            "beta2": parts[1].fillna("0.95"),
            "rate": parts[2].astype(float),
            "seed": own["seed"],
            "processor": own["processor"],
            "loss": _ends(own),
        }
    )


def _ends(rows: pd.DataFrame) -> list[float]:
    """Return the mean of each run's last 500 losses; Inf if it diverged."""
    return [
        np.inf if status == "diverged" else float(np.mean(loss[-END:]))
        for status, loss in zip(rows["status"], rows["loss"], strict=True)
    ]


def one_run_a_cell(cells: pd.DataFrame) -> pd.DataFrame:
    """Leave one run of each cell, of its seed's main processor if it can be."""
    size = cells.groupby(_PAIR)["loss"].transform("size")
    order = ["size", "processor"]
    ranked = cells.assign(size=size).sort_values(order, ascending=False)
    kept = ranked.drop_duplicates(["method", "beta2", "rate", "seed"])
    return cells.loc[kept.index.sort_values()]


def rate_table(cells: pd.DataFrame) -> str:
    """Table of :func:`rate_cells`: a row per beta2 and method.

    All means of a row are over the same seeds: a rate that fewer of them ran is
    left out, as is a second run of a cell. The best rate has the lowest
    mean; the last column is that loss minus GlobalGC 1's best at this beta2,
    seed by seed.
    """
    if cells.empty:
        return NOT_RUN
    rates, cells = sorted({*cells["rate"]}), one_run_a_cell(cells)
    best: dict[tuple[str, str], pd.Series] = {}
    lines = []
    for (beta2, method), part in cells.groupby(["beta2", "method"], sort=False):
        by_seed = part.pivot(index="rate", columns="seed", values="loss")
        counts = by_seed.count(axis=1)
        by_seed = by_seed[counts == counts.max()].dropna(axis=1)
        means = by_seed.mean(axis=1)
        basin = means[means <= means.min() + _BASIN].index
        best[beta2, method] = by_seed.loc[means.idxmin()]
        line = [beta2, method, str(by_seed.shape[1])]
        line += [fixed(means[r], 3) if r in means else "–" for r in rates]
        is_whole = len(means) == len(rates)
        width = f"{basin.min():g} to {basin.max():g}" if is_whole else "–"
        other = best.get((beta2, REFERENCE))
        text = "–"
        if is_whole and method != REFERENCE and other is not None:
            gains = (best[beta2, method] - other).dropna()
            text = shown(difference(gains.tolist()))
        lines.append([*line, width, text])
    head = ["beta2", "Method", "Seeds", *(f"rate {r:g}" for r in rates)]
    head += [f"Rates within {_BASIN} of its best", f"Its best − {REFERENCE}'s"]
    return markdown_table(head, lines, left=2)


def rate_differences(cells: pd.DataFrame) -> str:
    """Table of differences from GlobalGC 1, paired by seed and processor."""
    lines = []
    methods = [m for m in dict.fromkeys(cells["method"]) if m != REFERENCE]
    for (beta2, rate), part in cells.groupby(["beta2", "rate"]):
        by = part.pivot(index=_PAIR, columns="method", values="loss")
        if REFERENCE not in by:
            continue
        gains = by.reindex(columns=methods).sub(by[REFERENCE], axis=0)
        gains = gains[by[REFERENCE].notna()].groupby("seed").mean()
        texts = [_gain(gains[method], len(gains)) for method in methods]
        lines.append([beta2, f"{rate:g}", len(gains), *texts])
    head = ["beta2", "Rate", "Seeds", *(f"{m} − {REFERENCE}" for m in methods)]
    return markdown_table(head, lines, left=2) if lines else NOT_RUN


def _gain(gains: pd.Series, number: int) -> str:
    """Format differences, and how many there are if not this number."""
    values = gains.dropna().tolist()
    one = len(values) == 1
    text = fixed(values[0], 3, "+") if one else shown(difference(values))
    return text + f", seeds: {len(values)}" * (0 < len(values) < number)


def rates_why(rows: pd.DataFrame) -> str:
    """Table of the grid ``rates-why``, seed by seed."""
    own = rows[rows["target"] == "rates-why"]
    own = own.assign(end=_ends(own))
    base = own[own["method"] == REFERENCE].set_index(_PAIR)["end"]
    lines = []
    for method, part in own.groupby("method", sort=False):
        gains = (part.set_index(_PAIR)["end"] - base).dropna()
        is_compared = method != REFERENCE and not method.endswith("0.95")
        texts = [fixed(x, 3, "+") for x in gains] if is_compared else ["–"]
        end = fixed(part["end"].mean(), 3)
        norm = fixed(part["early_update_norm"].mean(), 2)
        lines.append([method, len(part), end, ", ".join(texts), norm])
    head = [
        *("Arm", "Seeds", "Loss of the last 500 steps"),
        *(f"Minus {REFERENCE}'s, by seed", "Update norm, steps 100 to 1,000"),
    ]
    return markdown_table(head, lines) if lines else NOT_RUN


def screen(rows: pd.DataFrame) -> str:
    """Table of ``spike-screen`` and ``spike-prose``, a row per run."""
    own = rows[rows["target"].isin(["spike-screen", "spike-prose"])]
    digits = {"peaks": 0, "worst": 2, "end": 3}
    lines = []
    for row in own.sort_values(["seed", "method"]).to_dict("records"):
        found = measure(row)
        cells = [fixed(found[name], n) for name, n in digits.items()]
        lines.append([row["method"], row["seed"], *cells])
    head = ["Method", "Seed", "Peaks above 0.5 nat", "Largest rise (nat)"]
    return markdown_table([*head, "Loss of the last 500 steps (nat)"], lines)


def smallest_h(rows: pd.DataFrame) -> str:
    """Table of h in the runs that stored it, by experiment and method."""
    own = rows[rows["smallest_h"].notna() & (rows["clean_twin"] == 0)]
    own = own[~own["method"].str.contains("GlobalGC|ZClip")]
    methods = own["method"].str.replace(", rate .*", "", regex=True)
    lines = [
        [
            f"{target}, {experiment}",
            method,
            str(len(part)),
            f"{fixed(part['clipped_percent'].mean(), 0)}%",
            f"{part['h_median'].median():.2g}",
            f"{part['smallest_h'].min():.1g}",
        ]
        for (target, experiment, method), part in own.groupby(
            ["target", "experiment", methods], sort=False
        )
    ]
    head = ["Experiment", "Method", "Runs", "Clipped", "Median h", "Smallest h"]
    return markdown_table(head, lines, left=2) if lines else NOT_RUN
