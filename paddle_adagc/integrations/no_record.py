# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a Trainer calls where nothing records its run."""

from __future__ import annotations

import os
from typing import Any, Literal

from paddle.nn.clip import ClipGradBase

Where = bool | str | os.PathLike[str]
"""Folder of a record; True: the default one; False: no record."""

StopOn = Literal["nan"] | None


class NoRecord:
    """Does nothing; :class:`.TrainerRecord` is the feature."""

    def begin(self, args: Any, state: Any, model: Any, optimizer: Any) -> None:
        """Training begins; the clip has its state."""

    def step(self, control: Any) -> None:
        """A step has ended."""

    def before_save(self, control: Any) -> None:
        """A checkpoint may be saved next."""

    def saved(self, clip: ClipGradBase | None) -> ClipGradBase | None:
        """Return the clip whose state a checkpoint gets."""
        return clip

    def numbers(self) -> dict[str, Any]:
        """Return numbers for a log."""
        return {}

    def close(self) -> None:
        """Training has ended."""
