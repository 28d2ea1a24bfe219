# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of the paper that Paddle lacks: Lion, Muon, and some that clip."""

from adagc_lab.optimizers.lion import Lion
from adagc_lab.optimizers.muon import Muon, hidden_matrices
from adagc_lab.optimizers.spam import SPAM
from adagc_lab.optimizers.stable_adamw import StableAdamW
from adagc_lab.optimizers.update_clips import ClippedAdamW

__all__ = [
    "SPAM",
    "ClippedAdamW",
    "Lion",
    "Muon",
    "StableAdamW",
    "hidden_matrices",
]
