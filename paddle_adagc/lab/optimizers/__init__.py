# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers that clip by themselves, which the paper compares with AdaGC."""

from paddle_adagc.lab.optimizers.spam import SPAM
from paddle_adagc.lab.optimizers.stable_adamw import StableAdamW
from paddle_adagc.lab.optimizers.update_clips import ClippedAdamW

__all__ = ["SPAM", "ClippedAdamW", "StableAdamW"]
