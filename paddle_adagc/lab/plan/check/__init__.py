# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check a recipe before it costs anything: its plan, and what is missing."""
