# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers that the paper trains under AdaGC, as Paddle optimizers."""

from paddle_adagc.optimizers.lion import Lion
from paddle_adagc.optimizers.muon import Muon, hidden_matrices

__all__ = ["Lion", "Muon", "hidden_matrices"]
