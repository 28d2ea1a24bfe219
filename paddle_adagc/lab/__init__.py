# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The laboratory: train, break, measure and compare. Not in the wheel."""
