# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Record every step of a training, judge it, and look at it.

Reading a record takes NumPy alone: ``Record``, which needs Paddle, is imported
when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paddle_adagc.watch.reading import RecordedRun, read_record

if TYPE_CHECKING:
    from paddle_adagc.watch.recorder import Record

__all__ = ["Record", "RecordedRun", "read_record"]


def __getattr__(name: str) -> Any:
    """Import ``Record`` when it is first used (PEP 562)."""
    if name != "Record":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from paddle_adagc.watch.recorder import Record

    return Record
