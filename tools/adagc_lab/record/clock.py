# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time that includes what a device still has to do.

A GPU works behind the host, whose clock alone would time the launches.
"""

from __future__ import annotations

import time
from typing import Any

import paddle


def device_seconds() -> float:
    """Seconds on a clock, once the device has done all that it was given."""
    if not _is_cpu():
        paddle.device.synchronize()
    return time.perf_counter()


class Timer:
    """Times what a device does between two points, without waiting there.

    The first point is where the timer is made. It is an event in the device's
    stream; on a CPU, a look at the clock.
    """

    def __init__(self) -> None:
        self._begin: Any = _mark()
        self._end = self._begin

    def stop(self) -> None:
        """Set the second point."""
        self._end = _mark()

    def seconds(self) -> float:
        """Time between the points; waits for the device to reach the second."""
        if isinstance(self._end, float):
            return self._end - self._begin
        self._end.synchronize()
        return self._begin.elapsed_time(self._end) / 1e3


def _is_cpu() -> bool:
    return bool(paddle.device.get_device() == "cpu")


def _mark() -> Any:
    if _is_cpu():
        return time.perf_counter()
    event = paddle.device.Event(enable_timing=True)
    event.record()
    return event
