# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables that do not come from runs: written by people, counted, modelled."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from adagc_lab.benchmark.gpu_hours import compare
from adagc_lab.markdown import markdown_table
from adagc_lab.report.differences import fixed

_WRITTEN = ("paper", "paper-accuracy", "proxies")


def written_tables(results: Path) -> dict[str, str]:
    """Return them by name."""
    tables = {name: _read(results / f"{name}.csv") for name in _WRITTEN}
    history = _read(results / "history.csv")
    return {
        **_history(history),
        "history-counts": _history_counts(history),
        "gpu-hours": _gpu_hours(),
        **{name: _whole_table(rows) for name, rows in tables.items()},
    }


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def _whole_table(rows: pd.DataFrame) -> str:
    return markdown_table(
        [*rows.columns], rows.to_numpy().tolist(), left=len(rows.columns)
    )


def _shortened(number: str) -> str:
    """Return the number of the verdict, and one that speaks against it."""
    number = re.sub(r", p [\d.e-]+", "", number)
    number = re.sub(r"\((\S+) to (\S+)\)", r"(\1, \2)", number)
    first, *rest = number.split("; ")
    against = [part for part in rest if part.startswith("but ")]
    return "; ".join([first.removeprefix("GlobalGC → "), *against])


def _history(claims: pd.DataFrame) -> dict[str, str]:
    """Claims with their verdicts: the paper's, our own, and those since."""
    claims = claims.assign(number=claims["number"].map(_shortened))
    heads = {
        "claim": "Claim",
        "first": "First rule",
        "last": "Last rule",
        "number": "Numbers of the last",
        "why": "Why",
    }
    is_old = claims["first"] != ""
    old = claims[is_old].rename(columns=heads)
    new = claims[~is_old].rename(columns={**heads, "number": "Numbers"})
    found = {
        f"history-{whose}": old.loc[old["whose"] == whose, [*heads.values()]]
        for whose in ("paper", "own")
    }
    found["history-new"] = new[["Claim", "Last rule", "Numbers"]]
    return {name: _whole_table(rows) for name, rows in found.items()}


def _history_counts(rows: pd.DataFrame) -> str:
    """How often each verdict was given, by whose claim it was then."""
    table = []
    for whose, group in (("the paper's", "paper"), ("our own", "own")):
        for rule, owner in (("first", "first_whose"), ("last", "whose")):
            own = rows[(rows[owner] == group) & (rows[rule] != "")]
            counts = own[rule].value_counts()
            told = ", ".join(
                f"{n} {v}" for v, n in sorted(counts.items()) if v != "(gone)"
            )
            total = int((own[rule] != "(gone)").sum())
            table.append([whose, rule, str(total), told])
    head = ["Claims", "Rule", "Number", "Verdicts"]
    return markdown_table(head, table, left=4)


def _gpu_hours() -> str:
    """The paper's saved GPU hours beside those that communication explains."""
    rows = []
    for found in compare():
        run = found.run
        change = found.adagc_us - found.global_gc_us
        rows.append(
            [
                f"{run.model}, {found.layout}",
                f"{run.global_gc_hours:,.1f}",
                f"{run.adagc_hours:,.1f}",
                f"{run.global_gc_hours - run.adagc_hours:.1f}",
                fixed(found.hours_saved, 3).replace("-0.000", "0.000"),
                fixed(change, 1, "+"),
            ]
        )
    head = [
        *("Run, layout", "Paper: GlobalGC (hours)", "Paper: AdaGC (hours)"),
        *("Paper: saved", "Saved by communication, computed"),
        "Communication of a step, AdaGC minus GlobalGC (us)",
    ]
    return markdown_table(head, rows)
