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
    return {
        "history-paper": _history(results, "paper"),
        "history-own": _history(results, "own"),
        "history-new": _history_new(results),
        "history-counts": _history_counts(results),
        "gpu-hours": _gpu_hours(),
        **{name: _as_written(results, name) for name in _WRITTEN},
    }


def _shortened(number: str) -> str:
    """Return the number of the verdict, and one that speaks against it."""
    number = re.sub(r", p [\d.e-]+", "", number)
    number = re.sub(r"\((\S+) to (\S+)\)", r"(\1, \2)", number)
    first, *rest = number.split("; ")
    against = [part for part in rest if part.startswith("but ")]
    return "; ".join([first.removeprefix("GlobalGC → "), *against])


def _history(results: Path, whose: str) -> str:
    """Claims with the first and the last verdict, from ``history.csv``."""
    rows = pd.read_csv(
        results / "history.csv", dtype=str, keep_default_na=False
    )
    head = ["Claim", "First rule", "Last rule", "Numbers of the last", "Why"]
    return markdown_table(
        head,
        [
            [r.claim, r.first, r.last, _shortened(r.number), r.why]
            for r in rows.itertuples()
            if r.whose == whose and r.first
        ],
        left=5,
    )


def _history_new(results: Path) -> str:
    """Claims that were written after the first rule."""
    rows = pd.read_csv(
        results / "history.csv", dtype=str, keep_default_na=False
    )
    head = ["Claim", "Last rule", "Numbers"]
    return markdown_table(
        head,
        [
            [r.claim, r.last, _shortened(r.number)]
            for r in rows.itertuples()
            if not r.first
        ],
        left=3,
    )


def _history_counts(results: Path) -> str:
    """How often each verdict was given, by whose claim it was then."""
    rows = pd.read_csv(
        results / "history.csv", dtype=str, keep_default_na=False
    )
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


def _as_written(results: Path, name: str) -> str:
    """Return a table that a person wrote, from ``NAME.csv``."""
    path = results / f"{name}.csv"
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    table = [[*row] for row in rows.itertuples(index=False)]
    return markdown_table([*rows.columns], table, left=len(rows.columns))
