# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The record of a run: every step, for any Paddle training."""

from paddle_adagc.record.files import RecordedRun, read_record

__all__ = ["RecordedRun", "read_record"]
