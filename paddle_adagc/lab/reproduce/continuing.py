# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A longer run under a constant schedule continues a shorter one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from paddle_adagc.lab.record.files import update_run_json
from paddle_adagc.lab.reproduce.grid import Cell, as_json


def continue_shorter(cell: Cell) -> Path | None:
    """Give a cell that has not begun the longest run that it would repeat.

    That is a finished run in the same store whose config differs in
    ``train.max_steps`` alone. Its directory is copied; the cell's process then
    resumes from its last checkpoint.

    Args:
        cell: To be run.

    Returns:
        The directory of the shorter run; None without one, or where the
        schedule is not constant or the cell has begun.
    """
    config = as_json(cell.config)
    if config["schedule"]["kind"] != "constant" or cell.directory.exists():
        return None
    shorter = {
        run["config"]["train"]["max_steps"]: path.parent
        for path in cell.directory.parent.glob("*/run.json")
        if _is_shorter(run := json.loads(path.read_text()), config)
        and any(path.parent.glob("checkpoint-*"))
    }
    if not shorter:
        return None
    source = shorter[max(shorter)]
    copying = cell.directory.with_name(f".{cell.directory.name}.tmp")
    shutil.rmtree(copying, ignore_errors=True)
    shutil.copytree(source, copying)
    update_run_json(copying, config=config, status="running")
    copying.rename(cell.directory)
    return source


def _is_shorter(run: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether a finished run differs from a config in being shorter alone."""
    earlier, train = run.get("config", {}), config["train"]
    if run.get("status") != "finished" or "train" not in earlier:
        return False
    if earlier["train"]["max_steps"] >= train["max_steps"]:
        return False
    length = {"max_steps": train["max_steps"]}
    return {**earlier, "train": {**earlier["train"], **length}} == config
