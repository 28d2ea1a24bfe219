# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables that do not come from runs: written by people, modelled."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from adagc_lab.benchmark.gpu_hours import gpu_hours_table
from adagc_lab.markdown import markdown_table


def written_tables(results: Path) -> dict[str, str]:
    """Return them by name."""
    tables = {"gpu-hours": gpu_hours_table()}
    for name in ("paper", "paper-accuracy", "proxies"):
        path = results / f"{name}.csv"
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        lines = rows.to_numpy().tolist()
        tables[name] = markdown_table(rows.columns, lines, left=len(lines[0]))
    return tables
