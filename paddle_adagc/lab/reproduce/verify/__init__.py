# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""An independent check of the results' pages, with code of its own.

Recomputes every number of every table, every spike count and excess that
follows from a stored loss series, every p, every verdict and the numbers of its
evidence, the figures, the READMEs' tables and what the text says on seeds and
skipped steps, from the lines in ``results/``. It shares nothing with the code
that wrote them: NumPy, SciPy and the standard library alone.
``results/report.json`` says which runs stand in which row and behind which
test; whether these are all runs of that config is checked, too.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

from paddle_adagc.lab.reproduce.verify.pages import (
    check_extents,
    check_figures,
    check_tables,
)
from paddle_adagc.lab.reproduce.verify.runs import (
    Runs,
    check_losses,
    derive,
)
from paddle_adagc.lab.reproduce.verify.verdicts import check_verdicts


def verify(results: Path, docs: Path) -> int:
    """Print every difference of the pages; 1 if anything differs, else 0."""
    runs = Runs(results)
    derive(runs.lines)
    report = json.loads((results / "report.json").read_text())
    pages = {
        path.relative_to(docs).as_posix(): path.read_text(encoding="utf-8")
        for path in [*docs.rglob("*.md"), *docs.rglob("*.svg")]
    }
    for name in ("README.md", "README_cn.md"):
        if (docs.parent / name).exists():
            pages[name] = (docs.parent / name).read_text(encoding="utf-8")
    count = num_wrong = 0
    for name, seen, expected in itertools.chain(
        runs.check_copies(),
        check_losses(runs.lines),
        check_tables(report["tables"], runs, pages),
        check_extents(report["tables"], runs, pages),
        check_figures(report["figures"], runs, pages),
        check_verdicts(report["verdicts"], runs, pages),
    ):
        count += 1
        if not same(seen, expected):
            num_wrong += 1
            print(f"{name}: stands {seen!r}, recomputed {expected!r}")
    print(f"{count} values recomputed, {num_wrong} differ")
    return int(num_wrong > 0 or count == 0)


def same(seen: Any, expected: Any) -> bool:
    """Equal; numbers up to what a line keeps of them, 7 digits."""
    if isinstance(seen, list) and isinstance(expected, list):
        return len(seen) == len(expected) and all(map(same, seen, expected))
    if isinstance(seen, (int, float)) and isinstance(expected, (int, float)):
        return math.isclose(seen, expected, rel_tol=1e-6, abs_tol=1e-12) or (
            math.isnan(seen) and math.isnan(expected)
        )
    return bool(seen == expected)
