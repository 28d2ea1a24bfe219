# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time that includes what a device still has to do."""

from __future__ import annotations

import time

import paddle


def device_seconds() -> float:
    """Seconds on a clock, once the device has done all that it was given.

    A GPU works behind the host, whose clock alone would time the launches.
    """
    if paddle.device.get_device() != "cpu":
        paddle.device.synchronize()
    return time.perf_counter()
