# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers that clip by themselves, which the paper compares with AdaGC."""

from adagc_lab.optimizers.spam import SPAM
from adagc_lab.optimizers.stable_adamw import StableAdamW
from adagc_lab.optimizers.update_clips import ClippedAdamW

__all__ = ["SPAM", "ClippedAdamW", "StableAdamW"]
