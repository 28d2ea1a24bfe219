# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arguments of the optimizers that configs check before Paddle is imported."""

from __future__ import annotations

from typing import Literal

Form = Literal["original", "paper"]
"""Of AGC and Clippy, see :mod:`paddle_adagc.optimizers.update_clips`."""

Scaling = Literal["spectral", "rms"]
"""Of :class:`paddle_adagc.optimizers.muon.Muon`."""


def check_clip_start(clip_start: int, reset_interval: int) -> None:
    """Refuse a schedule in which nothing would ever be clipped."""
    if clip_start >= reset_interval:
        raise ValueError(
            f"clip_start={clip_start} must be below "
            f"reset_interval={reset_interval}: nothing would be clipped"
        )
