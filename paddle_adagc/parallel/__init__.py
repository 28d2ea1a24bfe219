# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which ranks hold which part of a tensor, and the code that asks them."""
