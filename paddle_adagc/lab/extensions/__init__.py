# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Clips beyond the library's: tried, judged, and not recommended."""
