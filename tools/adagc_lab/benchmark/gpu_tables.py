# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/gpu.md, from the rows that tools/check_gpu.py printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adagc_lab.markdown import markdown_table

_SHARES = (0.0, 0.1, 1.0)
"""Of the tensors, that are clipped."""

_HEAD = [
    "gradients",
    "values, M",
    "ms, 0 / 10 / 100% clipped",
    "of a copy's time",
    "foreach, ms",
    "host, ms",
    "foreach's host, ms",
]


def tables(file: Path) -> str:
    """Return the tables of docs/gpu.md from the rows of a run, or of several.

    Of a GPU and framework with several runs the last one's rows count.
    """
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    text = ""
    for run in {(row["gpu"], row["framework"]): None for row in rows}:
        of_run = [r for r in rows if (r["gpu"], r["framework"]) == run]
        checks: dict[str, dict[str, Any]] = {}
        for row in (row for row in of_run if "check" in row):
            if "error" not in checks.get(row["check"], {}):
                checks[row["check"]] = row  # one for each dtype: an error stays
        results = ", ".join(
            f"{name}: {_outcome(row)}" for name, row in checks.items()
        )
        text += f"**{run[0]}**, {run[1]}, driver for CUDA "
        text += f"{of_run[-1]['driver'] // 1000}, NVRTC {of_run[-1]['nvrtc']}. "
        text += f"Checks: {results}.\n\n"
        lists: dict[tuple[Any, ...], dict[float, dict[str, Any]]] = {}
        for row in of_run:
            if "time" in row:
                key = (
                    *(row[k] for k in ("time", "values", "dtype", "offset")),
                )
                lists.setdefault(key, {})[row["clipped"]] = row
        text += markdown_table(_HEAD, _time_rows(lists))
        text += "\n"
    return text


def _outcome(row: dict[str, Any]) -> str:
    for word in ("error", "skipped"):
        if word in row:
            return f"{word} ({row[word]})"
    return "passed"


def _time_rows(
    lists: dict[tuple[Any, ...], dict[float, dict[str, Any]]],
) -> Iterator[list[str]]:
    for (name, values, dtype, offset), rows in lists.items():
        of_list = [rows[share] for share in _SHARES]
        name = f"{name}, {dtype}" + (", not aligned" if offset else "")
        yield [
            name,
            f"{values / 1e6:.0f}",
            " / ".join(f"{row['ms']:.2f}" for row in of_list),
            " / ".join(f"{row['of_copy_bandwidth']:.2f}" for row in of_list),
            *(
                f"{of_list[0].get(key, float('nan')):.2f}"
                for key in ("foreach_ms", "host_ms", "foreach_host_ms")
            ),
        ]
