# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers that the paper compares with, as Paddle optimizers."""

from paddle_adagc.optimizers.lion import Lion
from paddle_adagc.optimizers.muon import Muon, hidden_matrices
from paddle_adagc.optimizers.spam import SPAM
from paddle_adagc.optimizers.stable_adamw import StableAdamW
from paddle_adagc.optimizers.update_clips import ClippedAdamW

__all__ = [
    "SPAM",
    "ClippedAdamW",
    "Lion",
    "Muon",
    "StableAdamW",
    "hidden_matrices",
]
