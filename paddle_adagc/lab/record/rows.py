# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lines of a run's record, checked one by one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

FIX = ": put the file back, or give the run's command again with --overwrite"
"""How to mend a record, for messages."""


def columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return every numeric key as float64 ``[num_steps]``."""
    keys = {
        key
        for row in rows
        for key, value in row.items()
        if isinstance(value, (int, float))
    }
    return {
        key: np.array([_number(row.get(key)) for row in rows], np.float64)
        for key in sorted(keys | {"loss"})
    }


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else np.nan


def read_names(path: Path) -> list[str]:
    """Read ``tensors.json``; a ValueError names a damaged one."""
    try:
        names = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error}){FIX}") from error
    if not isinstance(names, list) or {*map(type, names)} - {str}:
        raise ValueError(f"{path}: damaged (no list of names){FIX}")
    return names


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a file's complete lines, one per step from 0 on."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().splitlines(True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            rows.append(_checked_row(json.loads(line), len(rows)))
        except (RecursionError, ValueError) as error:
            raise ValueError(
                f"{path}, line {number}: damaged ({error}){FIX}"
            ) from error
    return rows


def _checked_row(row: Any, step: int) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"a {type(row).__name__}, not an object")
    if type(row.get("step")) is not int or row["step"] != step:
        raise ValueError(f"step {row.get('step')!r}, where {step} belongs")
    for key, value in row.items():
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise ValueError(f"{key} is too large")
    if not isinstance(row.get("loss", 0.0), (int, float, type(None))):
        raise ValueError(f"the loss is {row['loss']!r:.40}")
    faults = row.get("faults", [])
    if not isinstance(faults, list) or not all(
        isinstance(fault, dict) and "kind" in fault for fault in faults
    ):
        raise ValueError(f"faults are {faults!r:.40}, not a list of faults")
    return row
