# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What ``adagc-run --watch`` records in loops without a Trainer.

The only file of this package that knows the record.
"""

from __future__ import annotations

import os
from typing import Any

import paddle.distributed as dist

from paddle_adagc.watch.losses import see_losses
from paddle_adagc.watch.recorder import Record, record_of
from paddle_adagc.watch.trainer import open_record

__all__ = ["record_loop", "record_of", "see_losses", "started"]

DEFAULT = "adagc-record"
"""Folder of a record without a Trainer, in the command's working folder."""


def record_loop(
    optimizer: Any, folder: str | None, options: dict[str, Any]
) -> Record | None:
    """Record an optimizer that begins a step; None: it cannot be."""
    if type(optimizer).__name__ == "LBFGS":  # which calls no clip
        return None
    chosen = {k: v for k, v in options.items() if k != "stop_on"}
    return open_record(folder or DEFAULT, optimizer, in_step=True, **chosen)


def started(record: Record, optimizer: Any) -> str:
    """Say where an optimizer is recorded; empty but on rank 0."""
    if dist.get_rank() != 0:
        return ""
    line = f"records {record.name} into {shown_path(record)}"
    if record.start:
        line += f", which goes on after step {record.start}"
    return line


def shown_path(record: Record) -> str:
    """Return a record's folder: relative where it lies below here."""
    return str(record.directory).removeprefix(os.path.join(os.getcwd(), ""))
