# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loss over the learning rate, of the grid ``rates``."""

from __future__ import annotations

import numpy as np
import pandas as pd

from adagc_lab.markdown import markdown_table
from adagc_lab.reproduce.analysis import REFERENCE, Pairs, difference, shown

_RATES = (0.0015, 0.003, 0.006, 0.012, 0.024)
_METHODS = ("GlobalGC 0.1", "AdaGC", "warmup_ema", "ZClip")


def rate_table(rows: pd.DataFrame) -> str:
    """Table of the loss over the rate: a row per method, beta2 and rate."""
    found = rate_losses(rows)
    if found.empty:
        return "Not run yet.\n"
    lines = []
    for (beta2, method), part in found.groupby(["beta2", "method"], sort=False):
        best = part["loss"].min()
        basin = part[part["loss"] <= best + 0.02]["rate"]
        row = [beta2, method, str(part["seeds"].max())]
        row += [
            "–" if cell.empty else f"{cell['loss'].iloc[0]:.3f}"
            for rate in _RATES
            for cell in [part[part["rate"] == rate]]
        ]
        width = f"{basin.min():g} to {basin.max():g}"
        lines.append([*row, f"{best:.3f}", width])
    head = ["beta2", "Method", "Seeds", *(f"rate {r:g}" for r in _RATES)]
    return markdown_table([*head, "Best", "Within 0.02 of it"], lines, left=2)


def rate_losses(rows: pd.DataFrame, target: str = "rates") -> pd.DataFrame:
    """Mean loss of the last 500 steps by beta2, method and rate.

    Only seeds that every cell of the same beta2 and rate has count.
    """
    own = rows[
        (rows["target"] == target) & rows["experiment"].isin(["rates", "cures"])
    ]
    if own.empty:
        return pd.DataFrame()
    parts = own["method"].str.extract(r"^(.+), beta2 ([\d.]+), rate ([\d.]+)$")
    table = pd.DataFrame(
        {
            "method": parts[0],
            "beta2": parts[1],
            "rate": parts[2].astype(float),
            "seed": own["seed"],
            "loss": [
                np.inf
                if status == "diverged"
                else float(np.nanmean(loss[-500:]))
                for status, loss in zip(own["status"], own["loss"], strict=True)
            ],
        }
    )
    main = own["experiment"] == "rates"
    counts = table[main].groupby("seed").size()
    complete = counts[counts == counts.max()].index
    table = table[table["seed"].isin(complete)]
    grouped = table.groupby(["beta2", "method", "rate"], sort=False)["loss"]
    result = grouped.agg(["mean", "size"]).reset_index()
    return result.rename(columns={"mean": "loss", "size": "seeds"})


def rate_differences(rows: pd.DataFrame) -> str:
    """Table of paired differences from GlobalGC 1 at each rate and beta2."""
    own = rows[rows["target"] == "rates"]
    own = own[own["experiment"].isin(["rates", "cures"])]
    parts = own["method"].str.extract(r"^(.+), beta2 ([\d.]+), rate ([\d.]+)$")
    lines: list[list[str]] = []
    for beta2 in ("0.999", "0.95"):
        for rate in _RATES:
            is_own = (parts[1] == beta2) & (parts[2] == f"{rate:g}")
            part = own[is_own].assign(method=parts[0][is_own])
            if part.empty:
                continue
            pairs = Pairs(part, REFERENCE)
            cells = []
            for method in _METHODS:
                others, ours = pairs.values(method, 2500, "end")
                found = difference(np.subtract(ours, others).tolist())
                alone = f"{ours[0] - others[0]:+.3f}" if ours else "–"
                cells.append(shown(found) if found else alone)
            number = len(pairs.runs(REFERENCE, 2500))
            lines.append([beta2, f"{rate:g}", str(number), *cells])
    head = ["beta2", "Rate", "Seeds", *(f"{m} − {REFERENCE}" for m in _METHODS)]
    return markdown_table(head, lines, left=2) if lines else "Not run yet.\n"


def smallest_h(rows: pd.DataFrame) -> str:
    """Table of h in the runs that stored it, by experiment and method."""
    own = rows[rows["smallest_h"].notna() & (rows["clean_twin"] == 0)]
    own = own[~own["method"].str.startswith(("GlobalGC", "ZClip"))]
    lines = [
        [
            f"{target}, {experiment}",
            method,
            str(len(part)),
            f"{part['clipped_percent'].mean():.0f}%",
            f"{part['h_median'].median():.2g}",
            f"{part['smallest_h'].min():.1g}",
        ]
        for (target, experiment, method), part in own.groupby(
            ["target", "experiment", "method"], sort=False
        )
    ]
    head = ["Experiment", "Method", "Runs", "Clipped", "Median h", "Smallest h"]
    return markdown_table(head, lines, left=2) if lines else "Not run yet.\n"
