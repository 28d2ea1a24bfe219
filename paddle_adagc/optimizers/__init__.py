# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers that the paper compares with, as Paddle optimizers."""
