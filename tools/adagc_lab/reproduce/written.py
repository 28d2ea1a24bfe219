# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables that do not come from runs: written by people, modelled."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from adagc_lab.benchmark.gpu_hours import compare
from adagc_lab.markdown import markdown_table
from adagc_lab.report.differences import fixed


def written_tables(results: Path) -> dict[str, str]:
    """Return them by name."""
    tables = {"gpu-hours": _gpu_hours()}
    for name in ("paper", "paper-accuracy", "proxies"):
        path = results / f"{name}.csv"
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        lines = rows.to_numpy().tolist()
        tables[name] = markdown_table(rows.columns, lines, left=len(lines[0]))
    return tables


def _gpu_hours() -> str:
    """The paper's saved GPU hours beside those that communication explains."""
    rows = []
    for found in compare():
        run = found.run
        rows.append(
            [
                f"{run.model}, {found.layout}",
                f"{run.global_gc_hours:,.1f}",
                f"{run.adagc_hours:,.1f}",
                f"{run.global_gc_hours - run.adagc_hours:.1f}",
                fixed(found.hours_saved, 3).replace("-0.000", "0.000"),
                fixed(found.adagc_us - found.global_gc_us, 1, "+"),
            ]
        )
    head = [
        *("Run, layout", "Paper: GlobalGC (hours)", "Paper: AdaGC (hours)"),
        *("Paper: saved", "Saved by communication, computed"),
        "Communication of a step, AdaGC minus GlobalGC (us)",
    ]
    return markdown_table(head, rows)
